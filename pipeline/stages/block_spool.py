"""Keeps the block tables of finished shards on this machine's disk until they are published.

A table is needed twice after its shard's record was read: when the pass is published, and when the
dataset is. In memory the 76 million blocks of 80,000 shards would take 3 GB, and reading each
record again would be two more requests per shard. So the tables wait in a temporary file. If the
launcher is lost with it, the next one reads the records again.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from pipeline.shards.records import BlockTable

_COLUMNS = ("offset", "size", "instances", "tokens")
_ROW_BYTES = 8 * len(_COLUMNS) + 4


class BlockSpool:
    """A temporary file of block tables. Only one thread at a time may add tables."""

    def __init__(self, descriptor: int) -> None:
        """Starts with no tables.

        Args:
            descriptor: An empty file that is open for reading and writing.
        """
        self._descriptor = descriptor
        self._num_bytes = 0

    def keep(self, table: BlockTable) -> Callable[[], BlockTable]:
        """Writes a table into the file, and returns a function that reads it from there.

        The function may be called from any thread.
        """
        numbers = np.stack([getattr(table, name) for name in _COLUMNS])
        data = numbers.astype(np.int64).tobytes() + table.crc32.astype(np.uint32).tobytes()
        start = self._num_bytes
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], start + written)
        self._num_bytes += len(data)
        return partial(self._read, start, len(table))

    def _read(self, start: int, num_blocks: int) -> BlockTable:
        """Reads the table of `num_blocks` blocks that begins at the byte `start` of the file."""
        data = os.pread(self._descriptor, num_blocks * _ROW_BYTES, start)
        numbers = np.frombuffer(data, np.int64, num_blocks * len(_COLUMNS))
        crc32 = np.frombuffer(data, np.uint32, num_blocks, offset=numbers.nbytes)
        offset, size, instances, tokens = numbers.reshape(len(_COLUMNS), num_blocks)
        return BlockTable(offset, size, instances, tokens, crc32)


@contextlib.contextmanager
def open_block_spool() -> Iterator[BlockSpool]:
    """Opens an empty spool in the folder that TMPDIR names; its file is deleted at the end."""
    with tempfile.TemporaryFile(prefix="beambert-blocks-") as file:
        yield BlockSpool(file.fileno())
