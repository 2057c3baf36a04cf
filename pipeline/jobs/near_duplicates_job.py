"""The near-duplicates job finds documents that are nearly equal to others.

    BandTask | write_bands -> files of bands
    KeyRange | write_found -> files of near-duplicates

Each document has a MinHash signature, which the tokens job wrote. A band is a part of a signature,
and its key is a hash of that part. Two documents with the same key in some band may be
near-duplicates, and their signatures are compared (pipeline.tokens.near_duplicates).

The first stage writes the bands of all documents to files, grouped by the first byte of the key.
The second stage begins when the first is complete. For each range of keys, it reads the bands of
the range from every file. So nothing is shuffled, and a worker holds the bands of one range in
memory. A file that is already there is not written again.
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
TASK_DOCUMENTS = 1 << 14
RANGE_ROWS = 1 << 18


@dataclass(frozen=True)
class BandTask:
    """Some documents, whose bands are written into one file.

    Attributes:
        slices: The documents, as ranges of rows of token parts: (name of the part, first row, row
            after the last). Each document is one row of the part's `.signatures` file.
    """

    slices: tuple[tuple[str, int, int], ...]

    def file_name(self, rule: SimilarityRule) -> str:
        """Returns the name of the file of bands: a hash of `slices` and of how bands are made."""
        digest = blake2b(f"{self.slices} {rule.bands} {rule.rows}".encode(), digest_size=16)
        return f"{WORK_FOLDER}/{digest.hexdigest()}.bands"


@dataclass(frozen=True)
class KeyRange:
    """A range of the keys of bands. One task searches the documents with these keys.

    The range is all keys whose first byte is at least `first` and at most `last`.

    Attributes:
        first: The smallest first byte of the range.
        last: The largest first byte of the range, inclusive.
        file_name: The file that receives the near-duplicates found in the range.
    """

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
    """Finds the near-duplicates among the documents of token parts.

    Results of an earlier launch that are already in the folder are used.

    Args:
        num_documents: The number of documents of each token part, by its name, from its index.
        rule: Decides which documents are near-duplicates.
        folder: Holds the token parts; the results are written into it.
        workers: The number of local worker processes.
        beam_arguments: The user's arguments for Beam.

    Returns:
        The ranges of keys, each with the file of its results.
    """
    tasks = plan_band_tasks(num_documents)
    ranges = plan_ranges(tasks, rule)
    band_files = tuple(task.file_name(rule) for task in tasks)
    found_files = {keys.file_name for keys in ranges}
    all_files = found_files.union(band_files)
    present = folder.list().keys()
    planned = broadcast(band_files, folder)

    def count() -> int:
        return len(all_files & folder.list().keys())

    def build(pipeline: beam.Pipeline) -> None:
        elements = pipeline | "Runs" >> CreateElements(tasks, folder)
        written = beam.pvalue.AsList(elements | "WriteBands" >> beam.Map(write_bands, rule, folder))
        keys = pipeline | "KeyRanges" >> beam.Create(ranges, reshuffle=True)
        _ = keys | "WriteFound" >> beam.Map(write_found, written, planned, rule, folder)

    if not found_files <= present:
        num_present = len(all_files & present)
        outputs = Outputs("tables of near-duplicates", len(all_files), num_present, count, folder)
        options = pipeline_options(workers, beam_arguments, len(all_files) - num_present)
        run_graph("near-duplicates", build, options, outputs)
    return ranges


def plan_band_tasks(num_documents: Mapping[str, int]) -> list[BandTask]:
    """Divides all documents among tasks of 16,384 to 32,768 documents; the last may have fewer.

    Args:
        num_documents: The number of documents of each token part, by its name.
    """
    slices = [
        (name, first, min(number, first + TASK_DOCUMENTS))
        for name, number in sorted(num_documents.items())
        for first in range(0, number, TASK_DOCUMENTS)
    ]
    batches = batch_by_size(slices, lambda rows: rows[2] - rows[1], TASK_DOCUMENTS)
    return [BandTask(tuple(batch)) for batch in batches]


def plan_ranges(tasks: Sequence[BandTask], rule: SimilarityRule) -> list[KeyRange]:
    """Divides all possible keys of bands into ranges of equal width.

    The number of ranges is the smallest power of two with which a range has at most 262,144 bands
    (23 MB) on average. It is at most 256, so the ranges of a very large input have more bands.

    The name of a range's file holds a hash of the tasks, the rule and the number of ranges. So
    results for other documents or another rule are not used by mistake.

    Args:
        tasks: All tasks, which have the documents.
        rule: Decides which documents are near-duplicates.
    """
    rows = rule.bands * sum(last - first for task in tasks for _, first, last in task.slices)
    number = 1
    while number < NUM_GROUPS and rows > number * RANGE_ROWS:
        number *= 2

    names = " ".join(task.file_name(rule) for task in tasks)
    digest = blake2b(f"{names} {rule.matches} {number}".encode(), digest_size=16).hexdigest()
    width = NUM_GROUPS // number
    return [
        KeyRange(first, first + width - 1, f"{WORK_FOLDER}/{digest}-{first:03d}.found")
        for first in range(0, NUM_GROUPS, width)
    ]


def write_bands(task: BandTask, rule: SimilarityRule, folder: Folder) -> str:
    """Writes the file of bands of a task, unless it is there already, and returns its name.

    Raises:
        ValueError: A file of signatures is missing or cut short.
    """
    name = task.file_name(rule)
    if not folder.exists(name):
        size = SIGNED_DTYPE.itemsize
        signed = bytearray()
        for part, first, last in task.slices:
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
    """Writes the file of near-duplicates of a range of keys, and returns its name.

    A file that is already there is not written again.

    Args:
        keys: The range.
        written: Names of the files of bands that the first stage wrote, as the runner delivers
            them.
        planned: Names of all files of bands, a tuple that was sent by `broadcast`. They are
            compared with `written`, because a runner may lose elements.
        rule: Decides which documents are near-duplicates.
        folder: The folder of the token parts.

    Raises:
        ValueError: `written` lacks a planned file, or a file of bands is missing or damaged.
    """
    names: tuple[str, ...] = planned.get()
    lost = sorted({*names} - {*written})
    if lost:
        raise ValueError(
            f"near-duplicates: of {len(names)} files of bands the runner delivered"
            f" {len({*written})}, without {folder.locate(lost[0])}: it loses what it should"
            " deliver; run the same command again, or on another runner"
        )
    if not folder.exists(keys.file_name):
        tables = (read_groups(folder, name, BANDED_DTYPE, keys.first, keys.last) for name in names)
        banded = np.concatenate([np.zeros(0, BANDED_DTYPE), *tables])
        found = find_near_duplicates(banded, rule.matches)
        folder.write(keys.file_name, pack_rows(found, found["high"] >> np.uint64(56)))
    return keys.file_name
