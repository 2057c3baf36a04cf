"""blocks.parquet: where every block of every shard lies (docs/format.md, section 3). Written whole, read as needed.

A small file is read whole, of a large one the footer once and then the row groups of the shards
that are wanted. 5 million blocks of 80,000 shards are 165 MB, of which a rank needs its lanes'
rows.
"""

import io
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards.block import Array, block_instances, view
from pipeline.shards.manifest import BLOCKS_TABLE, named_damage, open_parquet, read_parquet
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.table_checks import check_blocks
from pipeline.storage.ranged_file import SeekableFile

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

_AHEAD_SHARES = 1.25
"""A row group is read by one request where it takes at most so many times the bytes of the average one."""

_STALE = "it is of another build of the dataset, or damaged: restore it, or rebuild the dataset"

_OPENING_SECONDS = 5.0
"""Threads that want rows wait so long for the one that opens the file; its request may hang for ever."""


def blocks_table(tables: Iterable[BlockTable]) -> bytes:
    """What `write_blocks` writes."""
    sink = io.BytesIO()
    write_blocks(sink, tables)
    return sink.getvalue()


def write_blocks(sink: IO[bytes], tables: Iterable[BlockTable]) -> None:
    """blocks.parquet: one row a block, in the order of shards.parquet; a row group holds whole shards.

    The tables are taken as they are needed; a row group of them is held.
    """
    options = {"compression": "zstd", "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(sink, BLOCKS_SCHEMA, **options) as writer:
        for first, members in _group_shards(tables):
            columns: dict[str, Array] = {
                name: np.concatenate([getattr(table, name) for table in members])
                for name in BLOCKS_SCHEMA.names[1:]
            }
            columns["shard"] = np.repeat(
                np.arange(first, first + len(members)), [len(table) for table in members]
            )
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in BLOCKS_SCHEMA]
            writer.write_table(pa.table(arrays, schema=BLOCKS_SCHEMA))


def open_block_tables(data: bytes, shards: Sequence[Shard], where: str) -> "BlockTables":
    """Those in the bytes of a whole file."""
    return BlockTables(lambda start, stop: data[start:stop], lambda: len(data), shards, where)


Keep = Callable[[str, Callable[[], bytes]], bytes]
"""Gives the bytes that a key names for good: kept ones, or else those that the function reads."""


class OpenedTables(NamedTuple):
    """What is kept of the file.

    Attributes:
        whole: Its rows; None where they are read a row group at a time.
        metadata: Its footer.
        num_bytes: Its size.
        first_row: The first row of each shard, and the end.
        group_rows: The first row of each row group, and the end.
    """

    whole: pa.Table | None
    metadata: Any
    num_bytes: int
    first_row: Array
    group_rows: Array


class BlockTables:
    """The rows of every shard; safe to use from several threads, which read different shards at once.

    What turns out to be damaged is read again when it is asked for again: the wire may have damaged
    it.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: Callable[[], int],
        shards: Sequence[Shard],
        where: str,
        opened: OpenedTables | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            read: Bytes start to stop - 1 of the file; what it raises is raised by `table`, as is
                what size raises.
            size: Its size in bytes.
            shards: Rows of shards.parquet, whose blocks it must have.
            where: Its URL, for messages.
            opened: What another process has read of it by `open`.
        """
        self._read = read
        self._size = size
        self._shards = shards
        self._where = where
        self._opened = opened
        self._opening = threading.Condition()
        self._opening_until = 0.0

    def table(self, row: int, keep: Keep | None = None) -> BlockTable:
        """The blocks of the shard in a row of shards.parquet.

        Args:
            row: Which.
            keep: Keeps what is read of this very file, and gives it to other processes.

        Raises:
            ValueError: The file is damaged, or does not describe the shard.
        """
        opened = self.open(keep)
        try:
            return self._rows_of(row, opened, self._reader(keep))
        except ValueError:
            self._opened = None
            raise

    def _reader(self, keep: Keep | None) -> Callable[[int, int], bytes]:
        if keep is None:
            return self._read
        return lambda start, stop: keep(f"{start}-{stop}", lambda: self._read(start, stop))

    def _rows_of(
        self, row: int, opened: OpenedTables, read: Callable[[int, int], bytes]
    ) -> BlockTable:
        first, stop = opened.first_row[row : row + 2].tolist()
        if opened.whole is not None:
            return _parse_rows(
                opened.whole.slice(first, stop - first), row, self._shards[row], self._where
            )
        group = int(np.searchsorted(opened.group_rows, first, side="right")) - 1
        rows = self._read_group(opened, group, read).slice(
            first - int(opened.group_rows[group]), stop - first
        )
        parsed = _parse_rows(rows, row, self._shards[row], self._where)
        del rows
        pa.default_memory_pool().release_unused()  # Arrow would keep some MB for every thread that reads
        return parsed

    def _read_group(
        self, opened: OpenedTables, group: int, read: Callable[[int, int], bytes]
    ) -> pa.Table:
        # Arrow is not asked where the columns lie: where that is damaged, its answer ends the
        # process. When it reads them it raises an error.
        share = (opened.num_bytes - opened.metadata.serialized_size) / max(
            1, len(opened.group_rows) - 1
        )
        ahead = _Ahead(read, opened.num_bytes, int(_AHEAD_SHARES * share))
        try:
            with named_damage(self._where):
                file = open_parquet(ahead, metadata=opened.metadata)
                return file.read_row_group(group, use_threads=False)
        except ValueError:
            if ahead.failure is not None:  # of the store, and not of the table
                raise ahead.failure from None
            raise

    def open(self, keep: Keep | None = None) -> OpenedTables:
        """Opens the file, which other threads wait for, though not for ever; as `table`."""
        with self._opening:
            while self._opened is None and (seconds := self._opening_until - time.monotonic()) > 0:
                self._opening.wait(seconds)
            if self._opened is not None:
                return self._opened
            self._opening_until = time.monotonic() + _OPENING_SECONDS
        opened = None
        try:
            opened = self._open(keep)
        finally:
            with self._opening:
                self._opened, self._opening_until = opened or self._opened, 0.0
                self._opening.notify_all()
        return opened

    def _open(self, keep: Keep | None) -> OpenedTables:
        read = self._reader(keep)
        num_bytes = (
            self._size() if keep is None else int(keep("size", lambda: str(self._size()).encode()))
        )
        if num_bytes <= WHOLE_BYTES:
            file = read_parquet(read(0, num_bytes), BLOCKS_SCHEMA, self._where)
            rows = self._count_rows(file)
            with named_damage(self._where):
                return OpenedTables(file.read(use_threads=False), file.metadata, num_bytes, *rows)
        start = max(0, num_bytes - _TAIL_BYTES)
        tail = read(start, num_bytes)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            begin = max(0, num_bytes - length)
            start, tail = begin, read(begin, start) + tail
        file = read_parquet(
            _Piece(tail, start, num_bytes), BLOCKS_SCHEMA, self._where, num_bytes=num_bytes
        )
        return OpenedTables(None, file.metadata, num_bytes, *self._count_rows(file))

    def _count_rows(self, file: pq.ParquetFile) -> tuple[Array, Array]:
        """The first row of each shard and of each row group, and the ends, checked against each other."""
        blocks = [
            max(1, -(-shard.instances // block_instances(shard.seq_len))) for shard in self._shards
        ]
        first_row = np.cumsum([0, *blocks], dtype=np.int64)
        groups = [
            file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)
        ]
        group_rows = np.cumsum([0, *groups], dtype=np.int64)
        advice = _STALE
        if group_rows[-1] != first_row[-1]:
            expected = f"{first_row[-1]} for the blocks of {len(blocks)} shards"
            raise ValueError(f"{self._where}: {group_rows[-1]} rows, expected {expected}; {advice}")
        if not np.isin(group_rows, first_row).all():
            raise ValueError(f"{self._where}: a row group ends inside a shard; {advice}")
        return first_row, group_rows


def _group_shards(tables: Iterable[BlockTable]) -> Iterator[tuple[int, list[BlockTable]]]:
    """The tables of each row group, with the number of the first."""
    first, members, num_rows = 0, list[BlockTable](), 0
    for table in tables:
        members.append(table)
        num_rows += len(table)
        if num_rows >= ROWS_PER_GROUP:
            yield first, members
            first, members, num_rows = first + len(members), [], 0
    if members:
        yield first, members


def _parse_rows(table: pa.Table, index: int, shard: Shard, where: str) -> BlockTable:
    """The blocks of the shard in row `index` of shards.parquet, checked against that row.

    Raises:
        ValueError: The rows name another shard, or their sums are not the shard's.
    """
    advice = _STALE
    if holes := [name for name in BLOCKS_SCHEMA.names if table.column(name).null_count]:
        raise ValueError(f"{where}: rows of {shard.name} hold no {holes[0]} in places; {advice}")
    # Copies, so that the rows of other shards are let go.
    columns: dict[str, Array] = {
        name: view(table.column(name).combine_chunks()).copy() for name in BLOCKS_SCHEMA.names
    }
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
        raise ValueError(
            f"{where}: rows of {shard.name} do not describe it: {error}; {advice}"
        ) from error
    return blocks


class _Ahead(SeekableFile):
    """A file read from front to back by few requests: each reads ahead of what is asked for.

    Attributes:
        failure: What a request raised; Arrow shows it as one of its own errors.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, ahead: int) -> None:
        super().__init__(size, BLOCKS_TABLE)
        self._read, self._ahead = read, ahead
        self._start, self._data = 0, b""
        self.failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        begin, end = (
            self._position,
            self._size if size < 0 else min(self._size, self._position + size),
        )
        if end <= begin:
            return b""
        if not self._start <= begin <= end <= self._start + len(self._data):
            try:
                self._data = self._read(begin, min(self._size, max(end, begin + self._ahead)))
            except Exception as error:
                self.failure = error
                raise
            self._start = begin
        self._position = end
        return self._data[begin - self._start : end - self._start]


class _Piece(SeekableFile):
    """A file of which only some bytes are at hand."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        super().__init__(size, BLOCKS_TABLE)
        self._data, self._start = data, start

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._position + size)
        first, last = self._position - self._start, stop - self._start
        if not 0 <= first <= last <= len(self._data):
            raise OSError(
                f"bytes {self._position}-{stop} are asked for, where {self._start}- should be all there is"
            )
        self._position = stop
        return self._data[first:last]
