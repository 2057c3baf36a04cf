"""The rows of all `.index` files together, a 256th of the ids at a time, so memory is not that of the corpus."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder
from pipeline.tokens.dropped_ids import DROPPED_DTYPE, REASONS, iterate_dropped, reason_numbers
from pipeline.tokens.grouped_rows import HEAD_BYTES, NUM_GROUPS, Rows, read_bounds, read_rows
from pipeline.tokens.token_parts import INDEX_DTYPE

_ROWS_AT_ONCE = 1 << 18  # read of all parts together: some 10 MB, and few requests of a small corpus


def iterate_index(
    folder: Folder, part_names: Sequence[str]
) -> Iterator[tuple[Rows, npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Index rows of all parts in 256 groups by the first byte of their ids; with its part and number in it.

    The rows of a group, which may have none, are sorted by id, then by source.
    """
    names = [f"{part}.index" for part in part_names]
    bounds = np.array([read_bounds(folder, name) for name in names], np.int64).reshape(len(names), NUM_GROUPS + 1)
    for first, last in _plan_reads(bounds.sum(axis=0)):
        starts, stops = bounds[:, first].tolist(), bounds[:, last].tolist()
        places = zip(names, starts, stops, strict=True)
        read = [read_rows(folder, name, INDEX_DTYPE, start, stop) for name, start, stop in places]
        for group in range(first, last):
            ranges = (bounds[:, group : group + 2] - bounds[:, first : first + 1]).tolist()
            found = [rows[start:stop] for rows, (start, stop) in zip(read, ranges, strict=True)]
            rows = np.concatenate([np.zeros(0, INDEX_DTYPE), *found])
            parts = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in found])
            order = np.lexsort((parts, rows["source"], rows["low"], rows["high"]))
            within = (np.arange(*bound) for bound in bounds[:, group : group + 2])
            yield rows[order], parts[order], np.concatenate([np.zeros(0, np.int64), *within])[order]


def _plan_reads(bounds: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of groups, each of at most `_ROWS_AT_ONCE` rows or one group, from the first row of every group."""
    first = 0
    while first < NUM_GROUPS:
        last = int(np.searchsorted(bounds, bounds[first] + _ROWS_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), NUM_GROUPS)
        yield first, last
        first = last


def distinct_rows(rows: Rows) -> Rows:
    """The first row of each id, of rows sorted by id: that of its first source."""
    distinct: Rows = rows[_first_rows(rows)]
    return distinct


def _first_rows(rows: Rows) -> npt.NDArray[np.int64]:
    is_copy = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    return np.flatnonzero(np.concatenate([[True], ~is_copy])[: len(rows)])


def iterate_reasons(folder: Folder, *, has_dropped: bool) -> Iterator[Rows]:
    """The rows of dropped.ids in 256 groups; empty ones where there is no such file."""
    return iterate_dropped(folder) if has_dropped else iter([np.zeros(0, DROPPED_DTYPE)] * NUM_GROUPS)


def iterate_kept(
    folder: Folder, names: Sequence[str], *, has_dropped: bool
) -> Iterator[tuple[Rows, npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """In 256 groups the first row of each kept document, how many rows hold it or a copy, the sum of their crc32."""
    dropped = iterate_reasons(folder, has_dropped=has_dropped)
    for rows, *_ in iterate_index(folder, names):
        starts = _first_rows(rows)
        documents, num_rows = rows[starts], np.diff(starts, append=len(rows))
        sums = np.add.reduceat(rows["crc32"].astype(np.uint64), starts) if len(rows) else np.zeros(0, np.uint64)
        is_kept = reason_numbers(documents, next(dropped)) == len(REASONS)
        yield documents[is_kept], num_rows[is_kept], sums[is_kept]


def read_part_rows(folder: Folder, name: str) -> Rows:
    """All rows of a part's `.index` file, in the order of the ids."""
    return np.frombuffer(folder.read(name)[HEAD_BYTES:], INDEX_DTYPE)


def pack_ids(rows: Rows, num_sources: int) -> bytes:
    """What documents_hash covers of some documents: their ids, of several sources each with its source's number."""
    return _id_bytes(rows) if num_sources == 1 else _labelled_id_bytes(rows)


def _id_bytes(rows: Rows) -> bytes:
    return np.stack([rows["high"], rows["low"]], axis=1).astype(">u8").tobytes()


def _labelled_id_bytes(rows: Rows) -> bytes:
    labelled = np.empty(len(rows), [("id", ">u8", 2), ("source", "u1")])
    labelled["id"] = np.stack([rows["high"], rows["low"]], axis=1)
    labelled["source"] = rows["source"]
    return labelled.tobytes()
