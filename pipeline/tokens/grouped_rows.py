"""Writes and reads grouped files: rows of equal size, in 256 groups by a byte of each row.

The byte is usually the first byte of a hash, such as a document's id. Then each group has about a
256th of the rows, and only one group needs to be in memory at a time.

A file begins with a table that has the number of the first row of each group, so that one request
can read any range of groups. `open_groups` fetches many files once, and keeps their rows on this
machine's disk.
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
    """Returns for each row whether it is the first one with its values: [D] bool.

    Args:
        columns: Columns of D rows. Rows with equal values must follow each other.
    """
    differs = np.zeros(len(columns[0]), np.bool_)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return differs


def pack_rows(rows: Rows, groups: npt.NDArray[Any]) -> bytes:
    """Returns the content of a grouped file.

    Args:
        rows: [D] rows, in the order of their groups.
        groups: [D] the group of each row, 0 to 255, ascending.
    """
    bounds = np.searchsorted(groups.astype(np.int64), np.arange(NUM_GROUPS + 1))
    return bounds.astype(_STARTS_DTYPE).tobytes() + rows.tobytes()


def write_groups(folder: Folder, name: str, groups: Iterable[Rows]) -> None:
    """Writes a grouped file group by group, through a local file.

    Args:
        folder: The folder of the file.
        name: The name of the file.
        groups: The rows of each of the 256 groups, in order.
    """
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
    """Reads the table at the beginning of a grouped file.

    Returns:
        The number of the first row of each group, and at the end the number of all rows: [257].

    Raises:
        ValueError: The file is missing, cut or damaged.
    """
    where = folder.locate(name)
    with named_loss(where):
        head = folder.read_range(name, 0, HEAD_BYTES)
    return _parse_bounds(head, where)


@contextlib.contextmanager
def named_loss(where: str) -> Iterator[None]:
    """Raises a ValueError that says what to do, if the context finds a file missing or too short.

    The error is a ValueError because runners pass this class on from their workers unchanged.

    Args:
        where: The URL of the file.

    Raises:
        ValueError: The file is missing or cut.
    """
    try:
        yield
    except SizeError as error:
        cause = "it is shorter than its index says, or the index is damaged"
        raise ValueError(f"{error}: {cause}; {_REMEDY}") from error
    except FileNotFoundError as error:
        raise ValueError(f"{where} is missing; {_REMEDY}") from error


def _parse_bounds(head: bytes, where: str) -> npt.NDArray[np.int64]:
    """Parses the table at the beginning of a grouped file, as `read_bounds` returns it: [257].

    Args:
        head: At least the first HEAD_BYTES bytes of the file.
        where: The URL of the file, for messages.

    Raises:
        ValueError: The numbers do not ascend from 0.
    """
    bounds = np.frombuffer(head, _STARTS_DTYPE, NUM_GROUPS + 1).astype(np.int64)
    if bounds[0] or np.any(np.diff(bounds) < 0):
        raise ValueError(f"{where}: its groups do not ascend: damaged; {_REMEDY}")
    return bounds


def read_rows(folder: Folder, name: str, dtype: np.dtype[Any], first: int, last: int) -> Rows:
    """Reads consecutive rows of a grouped file by one request.

    Args:
        folder: The folder of the file.
        name: The name of the file.
        dtype: The type of a row.
        first: The number of the first row.
        last: One past the number of the last row. If it equals `first`, nothing is read.

    Raises:
        ValueError: The file is missing, or ends before these rows.
    """
    if first == last:
        return np.zeros(0, dtype)
    start = HEAD_BYTES + first * dtype.itemsize
    stop = HEAD_BYTES + last * dtype.itemsize
    with named_loss(folder.locate(name)):
        return np.frombuffer(folder.read_range(name, start, stop), dtype)


def read_groups(folder: Folder, name: str, dtype: np.dtype[Any], first: int, last: int) -> Rows:
    """Reads all rows of consecutive groups of a grouped file, by two requests.

    Args:
        folder: The folder of the file.
        name: The name of the file.
        dtype: The type of a row.
        first: The number of the first group, 0 to 255.
        last: The number of the last group, inclusive.

    Raises:
        ValueError: The file is missing, cut or damaged.
    """
    bounds = read_bounds(folder, name)
    return read_rows(folder, name, dtype, int(bounds[first]), int(bounds[last + 1]))


def parse_rows(data: bytes, dtype: np.dtype[Any], where: str) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Parses the content of a grouped file.

    Args:
        data: The content of the file.
        dtype: The type of a row.
        where: The URL of the file, for messages.

    Returns:
        All rows: [D]. And the bounds of the groups as `read_bounds` returns them: [257].

    Raises:
        ValueError: The file is cut or damaged.
    """
    size = len(data) - HEAD_BYTES
    bounds = _parse_bounds(data, where) if size >= 0 else np.zeros(NUM_GROUPS + 1, np.int64)
    expected = int(bounds[-1]) * dtype.itemsize
    if size != expected:
        found = f"found {len(data)} bytes, expected {HEAD_BYTES + expected} by its beginning"
        raise ValueError(f"{where}: {found}: damaged; {_REMEDY}")
    return np.frombuffer(data, dtype, offset=HEAD_BYTES), bounds


@dataclass(frozen=True)
class LocalGroups:
    """The rows of F grouped files on this machine's disk, to be read one group at a time.

    Attributes:
        folder: The folder that the files are from.
        dtype: The type of a row.
        descriptor: An open local file with the rows of all files, one file after another.
        bounds: [F, 257] for each file the bounds of its groups, as `read_bounds` returns them.
    """

    folder: Folder
    dtype: np.dtype[Any]
    descriptor: int
    bounds: npt.NDArray[np.int64]

    def __iter__(self) -> Iterator[Rows]:
        """Yields 256 arrays: for each group its rows from all files, file after file.

        Two columns are added to the rows. `file` is the number of the file that the row is from,
        and `number` is the number of the row in that file.
        """
        first_of_file = np.cumsum(self.bounds[:, -1]) - self.bounds[:, -1]
        places = self.bounds + first_of_file[:, None]  # bounds as rows of the local file
        columns = np.dtype([*self.dtype.descr, ("file", "<u4"), ("number", "<u4")])
        for group in range(NUM_GROUPS):
            plain_rows = self._read_places(places[:, group], places[:, group + 1])
            rows = np.empty(len(plain_rows), columns)
            for name in self.dtype.names or ():
                rows[name] = plain_rows[name]

            starts = self.bounds[:, group]
            counts = self.bounds[:, group + 1] - starts
            rows["file"] = np.repeat(np.arange(len(counts)), counts)
            # Row i of the group is row i - b of the group in its file, if b of the group's rows are
            # in earlier files. Its number is that, plus the number of the file's first such row.
            rows_before = np.cumsum(counts) - counts
            rows["number"] = np.arange(len(rows)) + np.repeat(starts - rows_before, counts)
            yield rows

    def _read_places(self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> Rows:
        """Reads ranges of rows of the local file, and returns all their rows in one array.

        Args:
            starts: [F] the first row of each range.
            stops: [F] one past the last row of each range.
        """
        size = self.dtype.itemsize
        chunks: list[bytes] = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if stop > start:
                chunks.append(os.pread(self.descriptor, (stop - start) * size, start * size))
        return np.frombuffer(b"".join(chunks), self.dtype)


@contextlib.contextmanager
def open_groups(
    folder: Folder, names: Sequence[str], dtype: np.dtype[Any]
) -> Iterator[LocalGroups]:
    """Fetches files of grouped rows, each by one request, and keeps the rows in a temporary file.

    The temporary file is in TMPDIR, and is deleted at the end of the context.

    Args:
        folder: The folder of the files.
        names: Names of the files.
        dtype: The type of a row.

    Raises:
        ValueError: A file is missing or damaged.
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
