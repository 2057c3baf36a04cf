"""blocks.parquet read as it is needed: whole where it is small, else its footer once and then one row group a shard.

May import the stdlib and pyarrow. 5 million blocks of 80,000 shards are 165 MB, of which a rank needs its lanes' rows.
"""

import io
import threading
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from pipeline.shards.manifest import open_blocks_table, read_block_table
from pipeline.shards.records import BlockTable, Shard

WHOLE_BYTES = 8 * 2**20
"""Up to this size the file is one request; reading rows apart would cost a round trip for each lane."""

_TAIL_BYTES = 2**16
"""What Arrow reads first to find the footer."""


class BlockTables:
    """The rows of every shard; safe to use from several threads, which read different shards at once."""

    def __init__(self, read: Callable[[int, int], bytes], size: Callable[[], int], num_shards: int, where: str) -> None:
        """Nothing is read yet.

        Args:
            read: Bytes start to stop - 1 of the file.
            size: Its size in bytes.
            num_shards: Row groups it must have.
            where: Its URL, for messages.
        """
        self._read = read
        self._size = size
        self._num_shards = num_shards
        self._where = where
        self._lock = threading.Lock()
        self._whole: pq.ParquetFile | None = None
        self._metadata: Any = None
        self._num_bytes = 0

    def table(self, row: int, shard: Shard) -> BlockTable:
        """The blocks of the shard in a row of shards.parquet.

        Raises:
            ValueError: The file is damaged, or does not describe the shard.
        """
        with self._lock:
            if self._metadata is None:
                self._open()
            if self._whole is not None:
                return read_block_table(self._whole, row, shard, self._where)
        group = self._metadata.row_group(row)
        columns = [group.column(index) for index in range(group.num_columns)]
        start = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
        stop = start + sum(column.total_compressed_size for column in columns)
        piece = _Piece(self._read(start, stop), start, self._num_bytes)
        return read_block_table(pq.ParquetFile(piece, metadata=self._metadata), row, shard, self._where)

    def _open(self) -> None:
        self._num_bytes = self._size()
        if self._num_bytes <= WHOLE_BYTES:
            self._whole = open_blocks_table(self._read(0, self._num_bytes), self._num_shards, self._where)
            self._metadata = self._whole.metadata
            return
        start = max(0, self._num_bytes - _TAIL_BYTES)
        tail = self._read(start, self._num_bytes)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            begin = max(0, self._num_bytes - length)
            start, tail = begin, self._read(begin, start) + tail
        footer = _Piece(tail, start, self._num_bytes)
        self._metadata = open_blocks_table(footer, self._num_shards, self._where, self._num_bytes).metadata


class _Piece(io.RawIOBase):
    """A file of which only some bytes are at hand."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        super().__init__()
        self._data, self._start, self._size = data, start, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._position + size)
        first, last = self._position - self._start, stop - self._start
        if not 0 <= first <= last <= len(self._data):
            raise OSError(f"bytes {self._position}-{stop} are asked for, where {self._start}- should be all there is")
        self._position = stop
        return self._data[first:last]
