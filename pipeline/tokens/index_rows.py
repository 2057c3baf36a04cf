"""The rows of all `.index` files together, a 256th of the ids at a time, so memory is not that of the corpus."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder
from pipeline.tokens.dropped_ids import REASONS, iterate_dropped, reason_numbers
from pipeline.tokens.grouped_rows import LocalGroups, Rows, parse_rows
from pipeline.tokens.token_parts import INDEX_DTYPE


def open_index(folder: Folder, part_names: Sequence[str]) -> LocalGroups:
    """The rows of all parts' `.index` files, fetched to this machine by one request a part."""
    return LocalGroups(folder, [f"{part}.index" for part in part_names], INDEX_DTYPE)


def iterate_index(index: LocalGroups) -> Iterator[Rows]:
    """Index rows of all parts in 256 groups by the first byte of their ids, each sorted by id, then by source, part.

    Columns `file` and `number` say which part a row is of, and where in it.
    """
    for rows in index:
        yield rows[np.lexsort((rows["source"], rows["low"], rows["high"]))]


def distinct_rows(rows: Rows) -> Rows:
    """The first row of each id, of rows sorted by id: that of its first source."""
    distinct: Rows = rows[_first_rows(rows)]
    return distinct


def _first_rows(rows: Rows) -> npt.NDArray[np.int64]:
    is_copy = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    return np.flatnonzero(np.concatenate([[True], ~is_copy])[: len(rows)])


def iterate_kept(
    index: LocalGroups, *, has_dropped: bool
) -> Iterator[tuple[Rows, npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """The first row of each kept document, how many rows hold it or a copy, the sum of their crc32: in 256 groups."""
    dropped = iterate_dropped(index.folder, has_dropped=has_dropped)
    for rows in iterate_index(index):
        starts = _first_rows(rows)
        documents, num_rows = rows[starts], np.diff(starts, append=len(rows))
        sums = (
            np.add.reduceat(rows["crc32"].astype(np.uint64), starts)
            if len(rows)
            else np.zeros(0, np.uint64)
        )
        is_kept = reason_numbers(documents, next(dropped)) == len(REASONS)
        yield documents[is_kept], num_rows[is_kept], sums[is_kept]


def read_part_rows(folder: Folder, name: str) -> Rows:
    """All rows of a part's `.index` file, in the order of the ids."""
    return parse_rows(folder.read(name), INDEX_DTYPE, folder.locate(name))[0]


def pack_ids(rows: Rows, num_sources: int) -> bytes:
    """What documents_hash covers of some documents: their ids, of several sources each with its source's number."""
    dtype = [("high", ">u8"), ("low", ">u8"), ("source", "u1")]
    columns = dtype[: 2 if num_sources == 1 else 3]
    packed = np.empty(len(rows), columns)
    for name, _ in columns:
        packed[name] = rows[name]
    return packed.tobytes()
