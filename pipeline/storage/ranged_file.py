"""Files read piece by piece, and many small ones at once, with storage's retries and length checks around each request.

A filesystem's own file objects try nothing again and take a body that a store cut short.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline.storage.folder import file_size, is_local, list_files, locate, read_range

BUFFER_BYTES = 2**20
_FILES_AT_ONCE = 16


class SeekableFile(io.RawIOBase):
    """A file of known size, of which subclasses read what stands at the position."""

    def __init__(self, size: int, name: str) -> None:
        """Begins at byte 0.

        Args:
            size: Bytes of the whole file.
            name: Names the file in messages.
        """
        super().__init__()
        self._size, self._name, self._position = size, name, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position of the file; reading at or past its end gives nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"{self._name}: cannot seek to {base + offset}, before the start of the file")
        self._position = base + offset
        return self._position


class RangedFile(SeekableFile):
    """A file of a store as a stream; every read is one request of exactly the bytes it needs."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        super().__init__(size, path)
        self._filesystem, self._path = filesystem, path

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, or what of it the file still has."""
        stop = min(self._position + len(buffer), self._size)
        if stop <= self._position:
            return 0
        data = read_range(self._filesystem, self._path, self._position, stop)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)


def open_ranged(filesystem: Any, path: str) -> io.BufferedReader:
    """A file opened for reading, on local disks by the system itself.

    Raises:
        FileNotFoundError: It is missing.
        StorageError: The store does not answer, now or at a later read.
    """
    if is_local(filesystem):
        return open(path, "rb")
    return io.BufferedReader(RangedFile(filesystem, path, file_size(filesystem, path)), BUFFER_BYTES)


def read_files(filesystem: Any, folder: str, names: Sequence[str]) -> dict[str, bytes]:
    """Small files of a folder by name, several at once, each length checked against the folder's listing.

    Raises:
        FileNotFoundError: One is missing.
        StorageError: The store does not answer.
    """
    sizes = list_files(filesystem, folder) if names else {}
    if missing := [name for name in names if name not in sizes]:
        raise FileNotFoundError(f"{locate(filesystem, folder)}: {missing[0]} and {len(missing) - 1} more are missing")

    def read(name: str) -> bytes:
        return read_range(filesystem, f"{folder}/{name}", 0, sizes[name])

    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        return dict(zip(names, threads.map(read, names), strict=True))
