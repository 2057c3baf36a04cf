"""Files of rows of one size in 256 groups, by a byte of each row; where each group begins is first.

So any range of groups is one read, and what is grouped by the first byte of a hash is read a 256th
at a time. Many files together are fetched once, and kept on this machine's disk (`open_groups`).
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.faults import SizeError
from pipeline.storage.folder import Folder

NUM_GROUPS = 256
_STARTS_DTYPE = np.dtype("<u4")
HEAD_BYTES = (NUM_GROUPS + 1) * _STARTS_DTYPE.itemsize
_REMEDY = "delete the folder of token parts, run again"

Rows = npt.NDArray[np.void]


def is_first(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """[D] whether a row of sorted columns differs in any of them from the row before it."""
    found = np.zeros(len(columns[0]), np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def pack_rows(rows: Rows, groups: npt.NDArray[Any]) -> bytes:
    """A whole file, of rows in the order of their groups (0 to 255)."""
    bounds = np.searchsorted(groups.astype(np.int64), np.arange(NUM_GROUPS + 1))
    return bounds.astype(_STARTS_DTYPE).tobytes() + rows.tobytes()


def write_groups(folder: Folder, name: str, groups: Iterable[Rows]) -> None:
    """Writes a file from its 256 groups as they come, through a local file."""
    bounds = [0]
    with tempfile.NamedTemporaryFile(prefix="beambert-rows-") as file:
        file.seek(HEAD_BYTES)
        for rows in groups:
            file.write(rows.tobytes())
            bounds.append(bounds[-1] + len(rows))
        assert len(bounds) == NUM_GROUPS + 1, f"{name}: {len(bounds) - 1} groups"
        file.seek(0)
        file.write(np.array(bounds, _STARTS_DTYPE).tobytes())
        file.flush()
        folder.write(name, Path(file.name))


def read_bounds(folder: Folder, name: str) -> npt.NDArray[np.int64]:
    """[257] first row of each group; raises ValueError where they do not ascend from 0."""
    where = folder.locate(name)
    with named_loss(where):
        head = folder.read_range(name, 0, HEAD_BYTES)
    return _parse_bounds(head, where)


@contextlib.contextmanager
def named_loss(where: str) -> Iterator[None]:
    """Adds what to do to errors about a file that is missing or cut.

    Raises:
        ValueError: The file is missing or cut. Runners pass this class on from their workers.
    """
    try:
        yield
    except SizeError as error:
        cause = "it is shorter than its index says, or the index is damaged"
        raise ValueError(f"{error}: {cause}; {_REMEDY}") from error
    except FileNotFoundError as error:
        raise ValueError(f"{where} is missing; {_REMEDY}") from error


def _parse_bounds(head: bytes, where: str) -> npt.NDArray[np.int64]:
    bounds = np.frombuffer(head, _STARTS_DTYPE, NUM_GROUPS + 1).astype(np.int64)
    if bounds[0] or np.any(np.diff(bounds) < 0):
        raise ValueError(f"{where}: its groups do not ascend: damaged; {_REMEDY}")
    return bounds


def read_rows(folder: Folder, name: str, dtype: np.dtype[Any], first: int, last: int) -> Rows:
    """Rows `first` to `last` - 1, by one request; none where the range is empty."""
    if first == last:
        return np.zeros(0, dtype)
    start, stop = (HEAD_BYTES + row * dtype.itemsize for row in (first, last))
    with named_loss(folder.locate(name)):
        return np.frombuffer(folder.read_range(name, start, stop), dtype)


def read_groups(folder: Folder, name: str, dtype: np.dtype[Any], first: int, last: int) -> Rows:
    """All rows of the groups `first` to `last`, inclusive."""
    bounds = read_bounds(folder, name)
    return read_rows(folder, name, dtype, int(bounds[first]), int(bounds[last + 1]))


def parse_rows(data: bytes, dtype: np.dtype[Any], where: str) -> tuple[Rows, npt.NDArray[np.int64]]:
    """The rows of a whole file, and [257] the first of each group; ValueError for a cut file."""
    size = len(data) - HEAD_BYTES
    bounds = _parse_bounds(data, where) if size >= 0 else np.zeros(NUM_GROUPS + 1, np.int64)
    expected = int(bounds[-1]) * dtype.itemsize
    if size != expected:
        found = f"found {len(data)} bytes, expected {HEAD_BYTES + expected} by its beginning"
        raise ValueError(f"{where}: {found}: damaged; {_REMEDY}")
    return np.frombuffer(data, dtype, offset=HEAD_BYTES), bounds


@dataclass(frozen=True)
class LocalGroups:
    """The rows of F grouped files on this machine's disk, to be read a group at a time."""

    folder: Folder
    dtype: np.dtype[Any]
    descriptor: int  # of a file with all rows, one file after another
    bounds: npt.NDArray[np.int64]  # [F, 257] where each group begins, in rows of that file

    def __iter__(self) -> Iterator[Rows]:
        """The rows of each of the 256 groups, those of a file after those of the files before it.

        Columns `file` and `number` say which file a row is of, and where in it.
        """
        firsts = np.cumsum(self.bounds[:, -1]) - self.bounds[:, -1]
        places, size = self.bounds + firsts[:, None], self.dtype.itemsize
        columns = np.dtype([*self.dtype.descr, ("file", "<u4"), ("number", "<u4")])
        for group in range(NUM_GROUPS):
            ends = places[:, group : group + 2].tolist()
            read = (os.pread(self.descriptor, (b - a) * size, a * size) for a, b in ends if b > a)
            own = np.frombuffer(b"".join(read), self.dtype)
            rows = np.empty(len(own), columns)
            for name in self.dtype.names or ():
                rows[name] = own[name]
            starts, counts = self.bounds[:, group], np.diff(places[:, group : group + 2])[:, 0]
            rows["file"] = np.repeat(np.arange(len(counts)), counts)
            rows["number"] = np.arange(len(own)) + np.repeat(
                starts + counts - np.cumsum(counts), counts
            )
            yield rows


@contextlib.contextmanager
def open_groups(
    folder: Folder, names: Sequence[str], dtype: np.dtype[Any]
) -> Iterator[LocalGroups]:
    """Fetches files of rows of this type by one request each, and keeps them where TMPDIR says.

    Raises ValueError where one is damaged, or missing.
    """
    bounds = np.zeros((len(names), NUM_GROUPS + 1), np.int64)
    with tempfile.TemporaryFile(prefix="beambert-rows-") as file:
        try:
            for number, data in enumerate(folder.read_each(names)):
                where = folder.locate(names[number])
                rows, bounds[number] = parse_rows(data, dtype, where)
                file.write(rows.tobytes())
        except FileNotFoundError as error:
            raise ValueError(f"{error}; {_REMEDY}") from error
        file.flush()
        yield LocalGroups(folder, dtype, file.fileno(), bounds)
