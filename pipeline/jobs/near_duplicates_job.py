"""The near-duplicates job: signatures of token parts to the documents that others make superfluous.

    runs of documents | write_bands -> files of bands
    ranges of keys    | write_found -> files of what was found

The second stage waits for the first, and reads from each of its files the one range that holds its
keys: no shuffle, so memory is that of one range of keys. Every task leaves a whole file or none;
running again skips those that are there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import apache_beam as beam
import numpy as np

from pipeline.jobs import worker_guard
from pipeline.jobs.broadcast import CreateElements
from pipeline.jobs.run_beam import Outputs, pipeline_options, run_graph
from pipeline.storage.folder import Folder
from pipeline.tokens.grouped_rows import NUM_GROUPS, pack_rows, read_groups
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
    """Some documents whose bands one task writes: (token part, first row, one after the last row) of each part."""

    slices: tuple[tuple[str, int, int], ...]

    def file_name(self, rule: SimilarityRule) -> str:
        """The file of its bands, relative to the folder of token parts; of other documents or bands it is another."""
        digest = blake2b(f"{self.slices} {rule.bands} {rule.rows}".encode(), digest_size=16)
        return f"{WORK_FOLDER}/{digest.hexdigest()}.bands"


@dataclass(frozen=True)
class KeyRange:
    """Keys whose first byte is in [first, last], and the file of what is found among them."""

    first: int
    last: int
    file_name: str


def run_near_duplicates_job(
    names: Sequence[str],
    rule: SimilarityRule,
    folder: Folder,
    workers: int,
    beam_arguments: Sequence[str],
) -> list[KeyRange]:
    """Runs the job over what is not finished of these token parts; returns where its results are."""
    sizes = folder.list()
    runs = plan_runs({name: sizes[f"{name}.signatures"] // SIGNED_DTYPE.itemsize for name in names})
    ranges = plan_ranges(runs, rule)
    names_of_all = {run.file_name(rule) for run in runs} | {keys.file_name for keys in ranges}

    def count() -> int:
        return len(names_of_all & folder.list().keys())

    def build(pipeline: beam.Pipeline) -> None:
        elements = pipeline | "Runs" >> CreateElements(runs, folder)
        written = beam.pvalue.AsList(elements | beam.Map(write_bands, rule, folder))
        keys = pipeline | "KeyRanges" >> beam.Create(ranges, reshuffle=True)
        _ = keys | beam.Map(write_found, written, rule, folder)

    if not {keys.file_name for keys in ranges} <= sizes.keys():
        found = len(names_of_all & sizes.keys())
        outputs = Outputs("tables of near-duplicates", len(names_of_all), found, count, folder)
        options = pipeline_options(workers, beam_arguments, len(names_of_all) - found)
        run_graph("near-duplicates", build, options, outputs)
    return ranges


def plan_runs(num_documents: Mapping[str, int]) -> list[Run]:
    """Token parts, by name, with the documents of each, in runs of 16,384 documents: few files, and bounded memory."""
    runs: list[Run] = []
    slices: list[tuple[str, int, int]] = []
    room = RUN_DOCUMENTS
    for name, number in sorted(num_documents.items()):
        first = 0
        while first < number:
            last = min(number, first + room)
            slices.append((name, first, last))
            room -= last - first
            first = last
            if room == 0:
                runs.append(Run(tuple(slices)))
                slices, room = [], RUN_DOCUMENTS
    return [*runs, Run(tuple(slices))] if slices else runs


def plan_ranges(runs: Sequence[Run], rule: SimilarityRule) -> list[KeyRange]:
    """The fewest equal ranges of keys, a power of two up to 256, with some 262,144 rows (23 MB) each."""
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
        size = SIGNED_DTYPE.itemsize
        signed = [
            folder.read_range(f"{part}.signatures", first * size, last * size)
            for part, first, last in run.slices
        ]
        folder.write(name, pack_bands(np.frombuffer(b"".join(signed), SIGNED_DTYPE), rule))
    return name


def write_found(
    keys: KeyRange,
    written: Sequence[str],
    rule: SimilarityRule,
    folder: Folder,
) -> str:
    """Writes what is found in a range of keys, unless it is there, and returns the file's name."""
    if not folder.exists(keys.file_name):
        read = (read_groups(folder, name, BANDED_DTYPE, keys.first, keys.last) for name in written)
        found = find_near_duplicates(
            np.concatenate([np.zeros(0, BANDED_DTYPE), *read]), rule.matches
        )
        folder.write(keys.file_name, pack_rows(found, found["high"] >> np.uint64(56)))
    return keys.file_name
