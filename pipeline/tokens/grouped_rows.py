"""Files of rows of one size in 256 groups, by a byte of each row: where each group begins stands first.

So any range of groups is one read, and what is grouped by the first byte of a hash is read a 256th at a time. May
import: stdlib, numpy, pipeline.storage.folder.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder

NUM_GROUPS = 256
_STARTS_DTYPE = np.dtype("<u4")
HEAD_BYTES = (NUM_GROUPS + 1) * _STARTS_DTYPE.itemsize

Rows = npt.NDArray[np.void]


def pack_rows(rows: Rows, groups: npt.NDArray[Any]) -> bytes:
    """A whole file, of rows in the order of their groups (0 to 255)."""
    bounds = np.searchsorted(groups.astype(np.int64), np.arange(NUM_GROUPS + 1))
    return bounds.astype(_STARTS_DTYPE).tobytes() + rows.tobytes()


def write_groups(folder: Folder, name: str, groups: Iterable[Rows]) -> int:
    """Writes a file from its 256 groups as they come, through a local file; memory is the largest group.

    Returns:
        How many rows.
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
    return bounds[-1]


def read_bounds(folder: Folder, name: str) -> npt.NDArray[np.int64]:
    """[257] first row of each group."""
    return parse_bounds(folder.read_range(name, 0, HEAD_BYTES))


def parse_bounds(head: bytes) -> npt.NDArray[np.int64]:
    """[257] first row of each group, from a file's first bytes."""
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
