"""Opens files of stores as streams whose every read is checked and repeated after errors.

The streams of fsspec repeat nothing, and accept an answer that is cut short.
"""

import io
from collections.abc import Callable
from typing import Any

BUFFER_BYTES = 2**20
"""Size of the buffer in front of a stream, and so of most of its requests."""


class SeekableFile(io.RawIOBase):
    """A readable stream over a file of known size, which keeps the position of the next read.

    This class implements the moves. Subclasses implement `readinto`, which reads.
    """

    def __init__(self, size: int, name: str) -> None:
        """Starts at the beginning of the file.

        Args:
            size: Length of the file in bytes.
            name: The file, for messages.
        """
        super().__init__()
        self._size = size
        self._name = name
        self._position = 0

    def readable(self) -> bool:
        """Returns True, as `io` asks before it reads."""
        return True

    def seekable(self) -> bool:
        """Returns True, as `io` asks before it moves."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position in the file, which may be past its end, and returns the position.

        Raises:
            OSError: The position is before the start of the file.
        """
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(f"{self._name}: cannot seek to {base + offset}, before the start")
        self._position = base + offset
        return self._position


class RangedFile(SeekableFile):
    """A stream over a file of a store; every read is one request for exactly its bytes."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int, name: str) -> None:
        """Opens the stream; no request is made.

        Args:
            read_range: Called with `start` and `stop`, returns the bytes `start` to `stop - 1`.
            size: Length of the file in bytes.
            name: The file, for messages.
        """
        super().__init__(size, name)
        self._read_range = read_range

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with the next bytes, and returns their number.

        It is smaller than the buffer near the end of the file, and 0 at the end.
        """
        stop = min(self._position + len(buffer), self._size)
        if stop <= self._position:
            return 0
        data = self._read_range(self._position, stop)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)
