"""The vocabulary job: parts of the input to word counts, a Beam graph of thin shells over word_counts.

    Part | ReadDocuments | CleanDocuments | SampleDocuments | FilterDocuments | CountWords |
    AddCounts | WriteCounts

Words are counted list by list and added up by bucket; each bucket leaves one file. Counts are whole
numbers and every file is sorted, so neither the order nor the grouping in which a runner adds
changes a byte.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import apache_beam as beam

from pipeline.documents import Document
from pipeline.documents.parts import Part
from pipeline.jobs import worker_guard
from pipeline.jobs.broadcast import CreateElements
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.jobs.tokens_job import (
    CleanDocuments,
    FilterDocuments,
    ReadDocuments,
    ReadingRule,
    largest_first,
)
from pipeline.storage.folder import Folder
from pipeline.text.filters import FilterRule
from pipeline.tokens.document_lists import DocumentList
from pipeline.tokens.token_records import finished_parts, format_record
from pipeline.tokens.word_counts import (
    PackedCounts,
    add_counts,
    add_packed,
    count_list,
    counts_table,
    pack_counts,
    sample_documents,
)

worker_guard.watch_in_workers()


@dataclass(frozen=True)
class CountingRule:
    """How words of the input are counted.

    Attributes:
        reading: How documents are read.
        filter: Which of them stay.
        num_bits: One of 2^bits documents of a part is counted, bits by the part's key; all of parts
            without any.
        lower_case: Whether words are.
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
        _ = (
            pipeline
            | "Parts" >> CreateElements(largest_first(parts), folder)
            | ReadDocuments(rule.reading)
            | CleanDocuments()
            | SampleDocuments(rule.num_bits)
            | FilterDocuments(rule.filter)
            | CountWords(rule.lower_case, folder, rule.factors)
            | AddCounts()
            | WriteCounts(folder)
        )

    def count() -> int:
        return len(finished_parts(folder.list(), parts))

    outputs = Outputs("word counts", len(parts), 0, count, folder, are_kept=False)
    run_graph("vocabulary", build, pipeline_options(workers, beam_arguments, len(parts)), outputs)


class SampleDocuments(beam.PTransform):  # type: ignore[misc]
    """Keeps one of 2^bits cleaned documents of each part, by their ids."""

    def __init__(self, num_bits: Mapping[str, int]) -> None:
        super().__init__()
        self._num_bits = num_bits

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.Map(sample_documents, self._num_bits)


class CountWords(beam.PTransform):  # type: ignore[misc]
    """Lists of cleaned documents to (bucket, counts); a record of each list below a folder shows progress.

    Counts are multiplied by the factor of the list's source.
    """

    def __init__(
        self,
        lower_case: bool,
        folder: Folder,
        factors: Sequence[int] = (1,),
    ) -> None:
        super().__init__()
        self._arguments = (lower_case, folder, tuple(factors))

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        return documents | beam.FlatMap(count_and_record, *self._arguments)


class AddCounts(beam.PTransform):  # type: ignore[misc]
    """Adds up each bucket's counts."""

    def expand(self, counts: beam.PCollection) -> beam.PCollection:
        return counts | beam.CombinePerKey(_AddCounts())


class WriteCounts(beam.PTransform):  # type: ignore[misc]
    """Writes each bucket as a table below a folder and yields its name."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._arguments = (folder,)

    def expand(self, counts: beam.PCollection) -> beam.PCollection:
        return counts | beam.Map(write_bucket, *self._arguments)


class _AddCounts(beam.CombineFn):  # type: ignore[misc]
    def create_accumulator(self) -> dict[str, int]:
        return {}

    def add_input(self, accumulator: dict[str, int], counts: PackedCounts) -> dict[str, int]:
        return add_packed(accumulator, counts)

    def merge_accumulators(self, accumulators: Iterable[dict[str, int]]) -> dict[str, int]:
        total: dict[str, int] = {}
        for accumulator in accumulators:
            add_counts(total, accumulator)
        return total

    def extract_output(self, accumulator: dict[str, int]) -> PackedCounts:
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
