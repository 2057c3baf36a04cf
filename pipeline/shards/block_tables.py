"""blocks.parquet: where every block of every shard lies (docs/format.md, section 3). Written whole, read as needed.

A small file is read whole, of a large one the footer once and then the row groups of the shards that are wanted.
5 million blocks of 80,000 shards are 165 MB, of which a rank needs its lanes' rows. May import the stdlib, numpy and
pyarrow.
"""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards.block import Array, block_instances
from pipeline.shards.manifest import named_damage, read_parquet
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.table_checks import check_blocks

BLOCKS_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("instances", pa.int32()),
        ("tokens", pa.int32()),
        ("crc32", pa.uint32()),
    ]
)

ROWS_PER_GROUP = 4096
"""A row group ends with the shard that brings it to so many rows: 140 kB to read for a shard. Arrow takes 6 kB to
describe a row group, which for one a shard were 480 MB of 80,000."""

WHOLE_BYTES = 8 * 2**20
"""Up to this size the file is one request; reading rows apart would cost a round trip for each lane."""

_TAIL_BYTES = 2**16
"""What Arrow reads first to find the footer."""


def blocks_table(tables: Sequence[BlockTable]) -> bytes:
    """blocks.parquet: one row a block, in the order of shards.parquet; a row group holds whole shards."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, BLOCKS_SCHEMA, compression="zstd", write_statistics=False) as writer:
        for first, members in _group_shards(tables):
            columns: dict[str, Array] = {
                name: np.concatenate([getattr(table, name) for table in members]) for name in BLOCKS_SCHEMA.names[1:]
            }
            columns["shard"] = np.repeat(np.arange(first, first + len(members)), [len(table) for table in members])
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in BLOCKS_SCHEMA]
            writer.write_table(pa.table(arrays, schema=BLOCKS_SCHEMA))
    return sink.getvalue()


def open_block_tables(data: bytes, shards: Sequence[Shard], where: str) -> "BlockTables":
    """Those in the bytes of a whole file."""
    return BlockTables(lambda start, stop: data[start:stop], lambda: len(data), shards, where)


class BlockTables:
    """The rows of every shard; safe to use from several threads, which read different shards at once."""

    def __init__(
        self, read: Callable[[int, int], bytes], size: Callable[[], int], shards: Sequence[Shard], where: str
    ) -> None:
        """Nothing is read yet.

        Args:
            read: Bytes start to stop - 1 of the file.
            size: Its size in bytes.
            shards: Rows of shards.parquet, whose blocks it must have.
            where: Its URL, for messages.
        """
        self._read = read
        self._size = size
        self._shards = shards
        self._where = where
        self._lock = threading.Lock()
        self._whole: pa.Table | None = None
        self._metadata: Any = None
        self._num_bytes = 0
        self._first_row: Array = np.zeros(0)
        self._group_rows: Array = np.zeros(0)

    def table(self, row: int) -> BlockTable:
        """The blocks of the shard in a row of shards.parquet.

        Raises:
            ValueError: The file is damaged, or does not describe the shard.
        """
        with self._lock:
            if self._metadata is None:
                self._open()
        first, stop = self._first_row[row : row + 2].tolist()
        if self._whole is not None:
            return _parse_rows(self._whole.slice(first, stop - first), row, self._shards[row], self._where)
        group = int(np.searchsorted(self._group_rows, first, side="right")) - 1
        rows = self._read_group(group).slice(first - int(self._group_rows[group]), stop - first)
        parsed = _parse_rows(rows, row, self._shards[row], self._where)
        del rows
        pa.default_memory_pool().release_unused()  # Arrow would keep some MB for every thread that reads
        return parsed

    def _read_group(self, group: int) -> pa.Table:
        described = self._metadata.row_group(group)
        columns = [described.column(index) for index in range(described.num_columns)]
        start = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
        stop = start + sum(column.total_compressed_size for column in columns)
        with named_damage(self._where):
            piece = _Piece(self._read(start, stop), start, self._num_bytes)
            return pq.ParquetFile(piece, metadata=self._metadata).read_row_group(group, use_threads=False)

    def _open(self) -> None:
        self._num_bytes = self._size()
        if self._num_bytes <= WHOLE_BYTES:
            file = read_parquet(self._read(0, self._num_bytes), BLOCKS_SCHEMA, self._where)
            self._count_rows(file)
            with named_damage(self._where):
                self._whole = file.read(use_threads=False)
        else:
            start = max(0, self._num_bytes - _TAIL_BYTES)
            tail = self._read(start, self._num_bytes)
            length = int.from_bytes(tail[-8:-4], "little") + 8
            if length > len(tail):
                begin = max(0, self._num_bytes - length)
                start, tail = begin, self._read(begin, start) + tail
            file = read_parquet(
                _Piece(tail, start, self._num_bytes), BLOCKS_SCHEMA, self._where, num_bytes=self._num_bytes
            )
            self._count_rows(file)
        self._metadata = file.metadata

    def _count_rows(self, file: pq.ParquetFile) -> None:
        """Where shards and row groups begin, checked against each other."""
        blocks = [max(1, -(-shard.instances // block_instances(shard.seq_len))) for shard in self._shards]
        self._first_row = np.cumsum([0, *blocks], dtype=np.int64)
        groups = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
        self._group_rows = np.cumsum([0, *groups], dtype=np.int64)
        advice = "restore or rebuild the dataset"
        if self._group_rows[-1] != self._first_row[-1]:
            expected = f"{self._first_row[-1]} for the blocks of {len(blocks)} shards"
            raise ValueError(f"{self._where}: {self._group_rows[-1]} rows, expected {expected}; {advice}")
        if not np.isin(self._group_rows, self._first_row).all():
            raise ValueError(f"{self._where}: a row group ends inside a shard; {advice}")


def _group_shards(tables: Sequence[BlockTable]) -> Iterator[tuple[int, list[BlockTable]]]:
    """The tables of each row group, with the number of the first."""
    first, members, num_rows = 0, [], 0
    for number, table in enumerate(tables):
        members.append(table)
        num_rows += len(table)
        if num_rows >= ROWS_PER_GROUP or number == len(tables) - 1:
            yield first, members
            first, members, num_rows = number + 1, [], 0


def _parse_rows(table: pa.Table, index: int, shard: Shard, where: str) -> BlockTable:
    """The blocks of the shard in row `index` of shards.parquet, checked against that row.

    Raises:
        ValueError: The rows name another shard, or their sums are not the shard's.
    """
    advice = "restore or rebuild the dataset"
    if holes := [name for name in BLOCKS_SCHEMA.names if table.column(name).null_count]:
        raise ValueError(f"{where}: rows of {shard.name} hold no {holes[0]} in places; {advice}")
    # Copies, so that the rows of other shards are let go.
    columns: dict[str, Array] = {name: table.column(name).to_numpy().copy() for name in BLOCKS_SCHEMA.names}
    blocks = BlockTable(
        offset=columns["offset"],
        size=columns["size"],
        instances=columns["instances"].astype(np.int64),
        tokens=columns["tokens"].astype(np.int64),
        crc32=columns["crc32"],
    )
    try:
        if not np.all(columns["shard"] == index):
            raise ValueError(f"they name another shard than number {index}")  # noqa: TRY301
        check_blocks(blocks, shard)
    except ValueError as error:
        raise ValueError(f"{where}: rows of {shard.name} do not describe it: {error}; {advice}") from error
    return blocks


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
