"""The vocabulary job: parts of the input to word counts, a Beam graph of thin shells over word_counts.

    Part | read_lists | clean_documents | sample_documents | filter_lists | count_and_record
         | _AddCounts | write_bucket

Words are counted list by list and added up by bucket; each bucket leaves one file. Counts are whole
numbers and every file is sorted, so neither the order nor the grouping in which a runner adds
changes a byte.
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
from pipeline.jobs.tokens_job import (
    ReadingRule,
    filter_lists,
    largest_first,
    read_lists,
)
from pipeline.storage.folder import Folder
from pipeline.text.filters import FilterRule
from pipeline.tokens.document_lists import DocumentList, clean_documents
from pipeline.tokens.token_records import finished_parts, format_record
from pipeline.tokens.word_counts import (
    PackedCounts,
    count_list,
    counts_table,
    pack_counts,
    sample_documents,
    unpack_counts,
)

worker_guard.watch_in_workers()


@dataclass(frozen=True)
class CountingRule:
    """How words of the input are counted.

    Attributes:
        num_bits: One of 2^bits documents of a part is counted, bits by the part's key; all of parts
            without any.
        factors: What counts of each source are multiplied by.
    """

    reading: ReadingRule
    filter: FilterRule
    num_bits: Mapping[str, int]
    lower_case: bool
    factors: Sequence[int]


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
            | "CleanDocuments" >> beam.Map(clean_documents)
            | "SampleDocuments" >> beam.Map(sample_documents, rule.num_bits)
        )
        _ = (
            filter_lists(sampled, rule.filter)
            | "CountWords"
            >> beam.FlatMap(count_and_record, rule.lower_case, folder, tuple(rule.factors))
            | "AddCounts" >> beam.CombinePerKey(_AddCounts())
            | "WriteBucket" >> beam.Map(write_bucket, folder)
        )

    def count() -> int:
        return len(finished_parts(folder.list(), parts))

    outputs = Outputs("word counts", len(parts), 0, count, folder, are_kept=False)
    run_graph("vocabulary", build, pipeline_options(workers, beam_arguments, len(parts)), outputs)


class _AddCounts(beam.CombineFn):  # type: ignore[misc]
    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def add_input(self, accumulator: Counter[str], counts: PackedCounts) -> Counter[str]:
        accumulator.update(unpack_counts(counts))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Counter[str]]) -> Counter[str]:
        total: Counter[str] = Counter()
        for accumulator in accumulators:
            total.update(accumulator)
        return total

    def extract_output(self, accumulator: Counter[str]) -> PackedCounts:
        return pack_counts(accumulator)


def count_and_record(
    documents: DocumentList[Document],
    lower_case: bool,
    folder: Folder,
    factors: Sequence[int] = (1,),
) -> Iterator[tuple[int, PackedCounts]]:
    """A list's counts by bucket; its record is named as the tokens job's, and holds its counters."""
    counts = list(count_list(documents, lower_case, factors))
    counted = documents.replace(
        documents.documents, {"documents_counted": len(documents.documents)}
    )
    name = f"{documents.part}-{documents.number:05d}" + ("-last" if documents.is_last else "")
    folder.write(f"{name}.json", format_record(counted))
    yield from counts


def write_bucket(bucket_counts: tuple[int, PackedCounts], folder: Folder) -> str:
    """Writes a bucket's table and returns its name."""
    bucket, counts = bucket_counts
    name = f"words-{bucket:05d}.parquet"
    folder.write(name, counts_table(counts))
    return name
