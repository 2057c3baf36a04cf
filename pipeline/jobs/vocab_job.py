"""The vocabulary job counts the words of the input, of which a vocabulary is learned afterwards.

    Part | read_lists | clean_documents | sample_documents | filter_lists | count_and_record
         | add_counts | write_bucket

The work is done by functions of pipeline.tokens.word_counts. Words are divided into buckets by a
hash, and each bucket becomes one sorted file. The files do not depend on the order in which a
runner adds up the counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import apache_beam as beam

from pipeline.documents import Document
from pipeline.documents.parts import Part
from pipeline.jobs import worker_guard
from pipeline.jobs.broadcast import CreateElements
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.jobs.tokens_job import ReadingRule, filter_lists, largest_first, read_lists
from pipeline.storage.folder import Folder
from pipeline.text.filters import FilterRule
from pipeline.tokens.document_lists import DocumentList, clean_documents
from pipeline.tokens.token_records import finished_parts, format_record
from pipeline.tokens.word_counts import (
    bucket_name,
    count_list,
    counts_table,
    sample_documents,
    seal_counts,
)
from tokenizer.word_rule import WordRule

worker_guard.watch_in_workers()


@dataclass(frozen=True)
class CountingRule:
    """Decides which documents are counted, and how their text is divided into words.

    Attributes:
        reading: How documents are read.
        filter: Which documents are left out.
        num_bits: How large a sample of each part of the input is counted. It maps a part's key to a
            number k: about one in 2^k documents of the part is counted. If a part is not in the
            mapping, all its documents are counted.
        words: How text is divided into words.
        factors: For each source, the number by which the counts of its words are multiplied, so
            that sources count by their weights.
    """

    reading: ReadingRule
    filter: FilterRule
    num_bits: Mapping[str, int]
    words: WordRule
    factors: Sequence[int]


def run_vocab_job(
    parts: Sequence[Part],
    rule: CountingRule,
    folder: Folder,
    workers: int,
    beam_arguments: Sequence[str],
) -> None:
    """Counts the words of all parts, and writes one table per bucket and one record per list.

    Args:
        parts: Parts of the input.
        rule: How words are counted.
        folder: Receives the tables and records.
        workers: The number of local worker processes.
        beam_arguments: The user's arguments for Beam.
    """

    def build(pipeline: beam.Pipeline) -> None:
        sampled = (
            pipeline
            | "Parts" >> CreateElements(largest_first(parts), folder)
            | "ReadDocuments" >> beam.FlatMap(read_lists, rule.reading)
            | "CleanDocuments" >> beam.Map(clean_documents, keeps_words=rule.words.keeps_words)
            | "SampleDocuments" >> beam.Map(sample_documents, rule.num_bits)
        )
        _ = (
            filter_lists(sampled, rule.filter)
            | "CountWords"
            >> beam.FlatMap(count_and_record, rule.words, folder, tuple(rule.factors))
            | "AddCounts" >> beam.CombinePerKey(add_counts)
            | "WriteBucket" >> beam.Map(write_bucket, folder)
        )

    def count() -> int:
        return len(finished_parts(folder.list(), parts))

    outputs = Outputs("word counts", len(parts), 0, count, folder, are_kept=False)
    run_graph("vocabulary", build, pipeline_options(workers, beam_arguments, len(parts)), outputs)


def add_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Returns the sums of several counts of words."""
    total: Counter[str] = Counter()
    for words in counts:
        total.update(words)
    return dict(total)


def count_and_record(
    documents: DocumentList[Document],
    rule: WordRule,
    folder: Folder,
    factors: Sequence[int] = (1,),
) -> Iterator[tuple[int, dict[str, int]]]:
    """Counts the words of a list of documents, and writes the record of the list.

    For every bucket the record holds a seal of its counts. It shows later whether the runner lost
    or repeated counts. The record's file is named in the same way as a record of the tokens job.

    Args:
        documents: The list.
        rule: How text is divided into words.
        folder: Receives the record.
        factors: For each source, the number by which the counts of its words are multiplied.

    Yields:
        The number of a bucket, and the counts of its words.
    """
    counts = list(count_list(documents, rule, factors))
    num_documents = len(documents.documents)
    counted = documents.replace(documents.documents, {"documents_counted": num_documents})
    name = f"{documents.part}-{documents.number:05d}" + ("-last" if documents.is_last else "")
    seals = {bucket: seal_counts(words) for bucket, words in counts}
    folder.write(f"{name}.json", format_record(counted, seals))
    yield from counts


def write_bucket(bucket_counts: tuple[int, dict[str, int]], folder: Folder) -> str:
    """Writes the table of a bucket, given as (bucket, counts by word), and returns its name."""
    bucket, counts = bucket_counts
    name = bucket_name(bucket)
    folder.write(name, counts_table(counts))
    return name
