"""The vocabulary job: parts of the input to word counts, a graph of thin shells over word_counts.

    Part | read_lists | clean_documents | sample_documents | filter_lists | count_and_record
         | add_counts | write_bucket

Each bucket of words leaves one sorted file, whatever the order and grouping in which a runner adds.
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
    """How words of the input are counted."""

    reading: ReadingRule
    filter: FilterRule
    num_bits: Mapping[str, int]  # one of 2^bits documents of a part counts, bits by its key
    words: WordRule
    factors: Sequence[int]  # of each source's counts


def run_vocab_job(
    parts: Sequence[Part],
    rule: CountingRule,
    folder: Folder,
    workers: int,
    beam_arguments: Sequence[str],
) -> None:
    """Counts the words of all parts; leaves tables and records in the folder."""

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
    """The counts of all lists together."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def count_and_record(
    documents: DocumentList[Document],
    rule: WordRule,
    folder: Folder,
    factors: Sequence[int] = (1,),
) -> Iterator[tuple[int, dict[str, int]]]:
    """Counts the words of a list, writes the list's record, and yields the counts by bucket.

    The record holds a seal of the counts of every bucket. It is named as in the tokens job.
    """
    counts = list(count_list(documents, rule, factors))
    kept = documents.documents
    counted = documents.replace(kept, {"documents_counted": len(kept)})
    name = f"{documents.part}-{documents.number:05d}" + ("-last" if documents.is_last else "")
    seals = {bucket: seal_counts(own) for bucket, own in counts}
    folder.write(f"{name}.json", format_record(counted, seals))
    yield from counts


def write_bucket(bucket_counts: tuple[int, dict[str, int]], folder: Folder) -> str:
    """Writes a bucket's table and returns its name."""
    bucket, counts = bucket_counts
    name = bucket_name(bucket)
    folder.write(name, counts_table(counts))
    return name
