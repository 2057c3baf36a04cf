"""Files of stores as streams: fsspec's own try nothing again and take a body that is cut short."""

import io
from collections.abc import Callable
from typing import Any

BUFFER_BYTES = 2**20


class SeekableFile(io.RawIOBase):
    """A file of known size, of which subclasses read what stands at the position."""

    def __init__(self, size: int, name: str) -> None:
        super().__init__()
        self._size, self._name, self._position = size, name, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position of the file; reading at or past its end gives nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"{self._name}: cannot seek to {base + offset}, before the start")
        self._position = base + offset
        return self._position


class RangedFile(SeekableFile):
    """A file of a store as a stream; every read is one request of exactly the bytes it needs."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int, name: str) -> None:
        super().__init__(size, name)
        self._read_range = read_range

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, or what of it the file still has."""
        stop = min(self._position + len(buffer), self._size)
        if stop <= self._position:
            return 0
        data = self._read_range(self._position, stop)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)
