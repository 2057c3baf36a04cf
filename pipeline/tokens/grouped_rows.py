"""Files of rows of one size in 256 groups, by a byte of each row: where each group begins stands first.

So any range of groups is one read, and what is grouped by the first byte of a hash is read a 256th
at a time. Many files together are fetched once, by one request each, and kept on this machine's
disk (`LocalGroups`).
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder

NUM_GROUPS = 256
_STARTS_DTYPE = np.dtype("<u4")
_REMEDY = "delete the folder of token parts, run again"
HEAD_BYTES = (NUM_GROUPS + 1) * _STARTS_DTYPE.itemsize

_ROWS_AT_ONCE = 1 << 20  # of all files together: some 60 MB

Rows = npt.NDArray[np.void]


def pack_rows(rows: Rows, groups: npt.NDArray[Any]) -> bytes:
    """A whole file, of rows in the order of their groups (0 to 255)."""
    bounds = np.searchsorted(groups.astype(np.int64), np.arange(NUM_GROUPS + 1))
    return bounds.astype(_STARTS_DTYPE).tobytes() + rows.tobytes()


def write_groups(folder: Folder, name: str, groups: Iterable[Rows]) -> int:
    """Writes a file from its 256 groups as they come, through a local file, and returns how many rows it has."""
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
    return bounds[-1]


def read_bounds(folder: Folder, name: str) -> npt.NDArray[np.int64]:
    """[257] first row of each group.

    Raises:
        ValueError: They do not ascend from 0.
    """
    bounds = _parse_bounds(folder.read_range(name, 0, HEAD_BYTES))
    if bounds[0] or np.any(np.diff(bounds) < 0):
        raise ValueError(f"{folder.locate(name)}: its groups do not ascend: damaged; {_REMEDY}")
    return bounds


def _parse_bounds(head: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(head, _STARTS_DTYPE, NUM_GROUPS + 1).astype(np.int64)


def read_rows(folder: Folder, name: str, dtype: np.dtype[Any], first: int, last: int) -> Rows:
    """Rows `first` to `last` - 1, by one request; none where the range is empty."""
    if first == last:
        return np.zeros(0, dtype)
    start, stop = (HEAD_BYTES + row * dtype.itemsize for row in (first, last))
    return np.frombuffer(folder.read_range(name, start, stop), dtype)


def read_groups(folder: Folder, name: str, dtype: np.dtype[Any], first: int, last: int) -> Rows:
    """All rows of the groups `first` to `last`, inclusive."""
    bounds = read_bounds(folder, name)
    return read_rows(folder, name, dtype, int(bounds[first]), int(bounds[last + 1]))


class LocalGroups:
    """The rows of many grouped files, fetched once and kept on this machine's disk, to be read a group at a time.

    Memory is some 150 MB and the largest group, whatever the files hold. The disk, where TMPDIR
    says, takes their bytes and 8 more a row.
    """

    def __init__(self, folder: Folder, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        """Fetches files of rows of this type.

        Raises:
            ValueError: One is damaged, or missing.
        """
        self.folder, self.names = folder, tuple(names)
        self._dtype = np.dtype([*dtype.descr, ("file", "<u4"), ("number", "<u4")])
        self._bounds: list[npt.NDArray[np.int64]] = []  # [257] of every run on the disk
        self._file = tempfile.TemporaryFile(prefix="beambert-rows-")  # noqa: SIM115 closed by __exit__
        try:
            self._fetch(dtype)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "LocalGroups":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _fetch(self, dtype: np.dtype[Any]) -> None:
        waiting: list[Rows] = []
        groups: list[npt.NDArray[np.uint8]] = []
        for number, data in enumerate(_read_files(self.folder, self.names)):
            rows, bounds = parse_rows(data, dtype, self.folder.locate(self.names[number]))
            placed = np.empty(len(rows), self._dtype)
            for name in dtype.names or ():
                placed[name] = rows[name]
            placed["file"], placed["number"] = number, np.arange(len(rows))
            waiting.append(placed)
            groups.append(np.repeat(np.arange(NUM_GROUPS, dtype=np.uint8), np.diff(bounds)))
            if sum(map(len, waiting)) >= _ROWS_AT_ONCE or number + 1 == len(self.names):
                self._keep(np.concatenate(waiting), np.concatenate(groups))
                waiting, groups = [], []
        self._file.flush()

    def _keep(self, rows: Rows, groups: npt.NDArray[np.uint8]) -> None:
        first = self._bounds[-1][-1] if self._bounds else 0
        self._bounds.append(first + np.cumsum([0, *np.bincount(groups, minlength=NUM_GROUPS)]))
        self._file.write(rows[np.argsort(groups, kind="stable")].tobytes())

    def __iter__(self) -> Iterator[Rows]:
        """The rows of each of the 256 groups, those of a file after those of the files before it.

        To their columns come `file`, the place of their file among the names, and `number`, their
        place in it.
        """
        size = self._dtype.itemsize
        for group in range(NUM_GROUPS):
            ranges = (bounds[group : group + 2].tolist() for bounds in self._bounds)
            read = (
                os.pread(self._file.fileno(), (stop - start) * size, start * size)
                for start, stop in ranges
            )
            yield np.frombuffer(b"".join(read), self._dtype)


def parse_rows(data: bytes, dtype: np.dtype[Any], where: str) -> tuple[Rows, npt.NDArray[np.int64]]:
    """The rows of a whole file, and the first row of each group.

    Raises:
        ValueError: Its size is not that of its rows.
    """
    bounds = _parse_bounds(data) if len(data) >= HEAD_BYTES else np.zeros(NUM_GROUPS + 1, np.int64)
    expected = HEAD_BYTES + int(bounds[-1]) * dtype.itemsize
    if len(data) != expected or bounds[0] or np.any(np.diff(bounds) < 0):
        raise ValueError(
            f"{where}: found {len(data)} bytes, expected {expected} by its beginning: damaged; {_REMEDY}"
        )
    return np.frombuffer(data, dtype, offset=HEAD_BYTES), bounds


def _read_files(folder: Folder, names: Sequence[str]) -> Iterator[bytes]:
    try:
        yield from folder.read_each(names)
    except FileNotFoundError as error:
        raise ValueError(f"{error}; {_REMEDY}") from error
