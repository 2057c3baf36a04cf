"""The near-duplicates job: signatures of token parts to the documents that others make superfluous.

    runs of documents | write_bands -> files of bands
    ranges of keys    | write_found -> files of what was found

The second stage waits for the first, and reads from each of its files the one range that holds its
keys: no shuffle, so memory is that of one range. Running again skips the files that are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import apache_beam as beam
import numpy as np

from pipeline.jobs import worker_guard
from pipeline.jobs.broadcast import Broadcast, CreateElements, broadcast
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.storage.folder import Folder
from pipeline.text.batches import batch_by_size
from pipeline.tokens.grouped_rows import NUM_GROUPS, named_loss, pack_rows, read_groups
from pipeline.tokens.near_duplicates import (
    BANDED_DTYPE,
    SIGNED_DTYPE,
    SimilarityRule,
    find_near_duplicates,
    pack_bands,
)

worker_guard.watch_in_workers()

WORK_FOLDER = "near_duplicates"
RUN_DOCUMENTS = 1 << 14
RANGE_ROWS = 1 << 18


@dataclass(frozen=True)
class Run:
    """Documents whose bands one task writes: (token part, first row, one after the last row)."""

    slices: tuple[tuple[str, int, int], ...]

    def file_name(self, rule: SimilarityRule) -> str:
        """The file of its bands; of other documents or bands it is another."""
        digest = blake2b(f"{self.slices} {rule.bands} {rule.rows}".encode(), digest_size=16)
        return f"{WORK_FOLDER}/{digest.hexdigest()}.bands"


@dataclass(frozen=True)
class KeyRange:
    """Keys whose first byte is in [first, last], and the file of what is found among them."""

    first: int
    last: int
    file_name: str


def run_near_duplicates_job(
    num_documents: Mapping[str, int],
    rule: SimilarityRule,
    folder: Folder,
    workers: int,
    beam_arguments: Sequence[str],
) -> list[KeyRange]:
    """Runs the job over the runs of token parts that are not finished yet.

    Args:
        num_documents: The number of documents of each token part, by its name, from its index.
        rule: Which documents are near-duplicates.
        folder: Holds the token parts; the results are written into it.
        workers: The number of local worker processes.
        beam_arguments: The user's arguments for Beam.

    Returns:
        The ranges of keys, each with the file of its results.
    """
    sizes = folder.list()
    runs = plan_runs(num_documents)
    ranges = plan_ranges(runs, rule)
    band_files = tuple(run.file_name(rule) for run in runs)
    names_of_all = {*band_files} | {keys.file_name for keys in ranges}
    planned = broadcast(band_files, folder)

    def count() -> int:
        return len(names_of_all & folder.list().keys())

    def build(pipeline: beam.Pipeline) -> None:
        elements = pipeline | "Runs" >> CreateElements(runs, folder)
        written = beam.pvalue.AsList(elements | "WriteBands" >> beam.Map(write_bands, rule, folder))
        keys = pipeline | "KeyRanges" >> beam.Create(ranges, reshuffle=True)
        _ = keys | "WriteFound" >> beam.Map(write_found, written, planned, rule, folder)

    if not {keys.file_name for keys in ranges} <= sizes.keys():
        found = len(names_of_all & sizes.keys())
        outputs = Outputs("tables of near-duplicates", len(names_of_all), found, count, folder)
        options = pipeline_options(workers, beam_arguments, len(names_of_all) - found)
        run_graph("near-duplicates", build, options, outputs)
    return ranges


def plan_runs(num_documents: Mapping[str, int]) -> list[Run]:
    """Token parts, by the number of their documents, in runs of 16,384 to 32,768 documents."""
    slices = [
        (name, first, min(number, first + RUN_DOCUMENTS))
        for name, number in sorted(num_documents.items())
        for first in range(0, number, RUN_DOCUMENTS)
    ]
    runs = batch_by_size(slices, lambda each: each[2] - each[1], RUN_DOCUMENTS)
    return [Run(tuple(run)) for run in runs]


def plan_ranges(runs: Sequence[Run], rule: SimilarityRule) -> list[KeyRange]:
    """The fewest equal ranges of keys, up to 256, with some 262,144 rows (23 MB) each."""
    rows = rule.bands * sum(last - first for run in runs for _, first, last in run.slices)
    number = 1
    while number < NUM_GROUPS and rows > number * RANGE_ROWS:
        number *= 2
    names = " ".join(run.file_name(rule) for run in runs)
    digest = blake2b(f"{names} {rule.matches} {number}".encode(), digest_size=16).hexdigest()
    width = NUM_GROUPS // number
    return [
        KeyRange(first, first + width - 1, f"{WORK_FOLDER}/{digest}-{first:03d}.found")
        for first in range(0, NUM_GROUPS, width)
    ]


def write_bands(run: Run, rule: SimilarityRule, folder: Folder) -> str:
    """Writes a run's bands, unless they are there, and returns the file's name."""
    name = run.file_name(rule)
    if not folder.exists(name):
        size, signed = SIGNED_DTYPE.itemsize, bytearray()
        for part, first, last in run.slices:
            signatures = f"{part}.signatures"
            with named_loss(folder.locate(signatures)):
                signed += folder.read_range(signatures, first * size, last * size)
        folder.write(name, pack_bands(np.frombuffer(signed, SIGNED_DTYPE), rule))
    return name


def write_found(
    keys: KeyRange,
    written: Sequence[str],
    planned: Broadcast,
    rule: SimilarityRule,
    folder: Folder,
) -> str:
    """Writes the near-duplicates in a range of keys, unless they are there; returns the file name.

    Raises:
        ValueError: The files of bands that the runner reports as written are not the planned ones.
    """
    names: tuple[str, ...] = planned.get()
    if lost := sorted({*names} - {*written}):
        raise ValueError(
            f"near-duplicates: of {len(names)} files of bands the runner delivered"
            f" {len({*written})}, without {folder.locate(lost[0])}: it loses what it should"
            " deliver; run the same command again, or on another runner"
        )
    if not folder.exists(keys.file_name):
        ends = keys.first, keys.last
        read = (read_groups(folder, name, BANDED_DTYPE, *ends) for name in names)
        banded = np.concatenate([np.zeros(0, BANDED_DTYPE), *read])
        found = find_near_duplicates(banded, rule.matches)
        folder.write(keys.file_name, pack_rows(found, found["high"] >> np.uint64(56)))
    return keys.file_name
