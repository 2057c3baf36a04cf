"""blocks.parquet: where every block of every shard lies (docs/format.md, section 3).

A small file is read whole, of a large one the footer once and then the row groups of the shards
that are wanted. 5 million blocks of 80,000 shards are 165 MB, of which a rank needs its lanes'
rows.
"""

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards.block import Array, block_instances
from pipeline.shards.manifest import BLOCKS_TABLE, named_damage, open_parquet, read_parquet
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.table_checks import check_blocks
from pipeline.storage.ranged_file import SeekableFile

BLOCKS_SCHEMA = pa.schema(
    {
        "shard": pa.int32(),
        **dict.fromkeys(("offset", "size"), pa.int64()),
        **dict.fromkeys(("instances", "tokens"), pa.int32()),
        "crc32": pa.uint32(),
    }
)

ROWS_PER_GROUP = 4096
"""A row group ends with the shard that brings it to so many rows: 140 kB to read for a shard. Arrow
takes 6 kB to describe a row group, which for one a shard were 480 MB of 80,000."""

WHOLE_BYTES = 8 * 2**20
"""Up to this size the file is one request; rows apart would cost a round trip for each lane."""

_AHEAD_SHARES = 1.25
"""A row group of at most so many times the average one's bytes is read by one request."""

_STALE = "it is of another build of the dataset, or damaged: restore it, or rebuild the dataset"

Read = Callable[[int, int], bytes]
"""Bytes start to stop - 1 of a file."""
Keep = Callable[[str, Callable[[], bytes]], bytes]
"""Gives the bytes that a key names for good: kept ones, or else those that the function reads."""


def blocks_table(tables: Iterable[BlockTable]) -> bytes:
    """What `write_blocks` writes."""
    sink = io.BytesIO()
    write_blocks(sink, tables)
    return sink.getvalue()


def write_blocks(sink: IO[bytes], tables: Iterable[BlockTable]) -> None:
    """blocks.parquet: one row a block, in the order of shards.parquet; it holds a row group."""
    options = {"compression": "zstd", "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(sink, BLOCKS_SCHEMA, **options) as writer:
        for first, members in _group_shards(tables):
            owners = np.arange(first, first + len(members))
            columns = {"shard": np.repeat(owners, [len(table) for table in members])}
            for name in BLOCKS_SCHEMA.names[1:]:
                columns[name] = np.concatenate([getattr(table, name) for table in members])
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in BLOCKS_SCHEMA]
            writer.write_table(pa.table(arrays, schema=BLOCKS_SCHEMA))


def open_block_tables(data: bytes, shards: Sequence[Shard], where: str) -> "BlockTables":
    """Those in the bytes of a whole file."""
    return BlockTables(lambda start, stop: data[start:stop], lambda: len(data), shards, where)


class OpenedTables(NamedTuple):
    """What is kept of the file."""

    whole: pa.Table | None
    """Its rows; None where they are read a row group at a time."""
    metadata: Any
    """Its footer."""
    num_bytes: int
    first_row: Array
    """The first row of each shard, and the end."""
    group_rows: Array
    """The first row of each row group, and the end."""


class BlockTables:
    """The rows of every shard; safe to use from several threads.

    What turns out to be damaged is read again when it is asked for again: the wire may have damaged
    it.
    """

    def __init__(
        self,
        read: Read,
        size: Callable[[], int],
        shards: Sequence[Shard],
        where: str,
        opened: OpenedTables | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            read: Reads the file; what it raises is raised by `table`, as is what size raises.
            size: Its size in bytes.
            shards: Rows of shards.parquet, whose blocks it must have.
            where: Its URL, for messages.
            opened: What another process has read of it by `open`.
        """
        self._read, self._size, self._shards, self._where = read, size, shards, where
        self._opened = opened

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
            first, stop = opened.first_row[row : row + 2].tolist()
            rows, start = opened.whole, 0
            if rows is None:
                group = int(np.searchsorted(opened.group_rows, first, side="right")) - 1
                rows = self._read_group(opened, group, self._reader(keep))
                start = int(opened.group_rows[group])
            own = rows.slice(first - start, stop - first)
            return _parse_rows(own, row, self._shards[row], self._where)
        except ValueError:
            self._opened = None
            raise

    def open(self, keep: Keep | None = None) -> OpenedTables:
        """Opens the file, as `table`; threads that come at once do not wait for each other."""
        opened = self._opened = self._opened or self._open(keep)
        return opened

    def _open(self, keep: Keep | None) -> OpenedTables:
        read, size = self._reader(keep), self._size
        num_bytes = size() if keep is None else int(keep("size", lambda: str(size()).encode()))
        if num_bytes > WHOLE_BYTES:
            with self._reading(read, num_bytes) as source:
                file = read_parquet(source, BLOCKS_SCHEMA, self._where, num_bytes=num_bytes)
            return OpenedTables(None, file.metadata, num_bytes, *self._count_rows(file))
        file = read_parquet(read(0, num_bytes), BLOCKS_SCHEMA, self._where)
        rows = self._count_rows(file)
        with named_damage(self._where):
            return OpenedTables(file.read(use_threads=False), file.metadata, num_bytes, *rows)

    def _read_group(self, opened: OpenedTables, group: int, read: Read) -> pa.Table:
        # Arrow is not asked where the columns lie: where that is damaged, its answer ends the
        # process. When it reads them it raises an error.
        num_groups = max(1, len(opened.group_rows) - 1)
        share = (opened.num_bytes - opened.metadata.serialized_size) / num_groups
        with self._reading(read, opened.num_bytes, int(_AHEAD_SHARES * share)) as source:
            file = open_parquet(source, metadata=opened.metadata)
            return file.read_row_group(group, use_threads=False)

    def _reader(self, keep: Keep | None) -> Read:
        if keep is None:
            return self._read
        return lambda start, stop: keep(f"{start}-{stop}", lambda: self._read(start, stop))

    @contextlib.contextmanager
    def _reading(self, read: Read, num_bytes: int, ahead: int = 0) -> Iterator["_Ahead"]:
        """The file for Arrow, which shows what the store raises as one of its own errors."""
        source = _Ahead(read, num_bytes, ahead)
        try:
            with named_damage(self._where):
                yield source
        except ValueError:
            if source.failure is not None:
                raise source.failure from None
            raise

    def _count_rows(self, file: pq.ParquetFile) -> tuple[Array, Array]:
        """The first row of each shard and of each row group, and the ends, held to each other."""
        blocks = [
            max(1, -(-shard.instances // block_instances(shard.seq_len))) for shard in self._shards
        ]
        first_row = np.cumsum([0, *blocks], dtype=np.int64)
        metadata = file.metadata
        groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        group_rows = np.cumsum([0, *groups], dtype=np.int64)
        if group_rows[-1] != first_row[-1]:
            expected = f"{first_row[-1]} for the blocks of {len(blocks)} shards"
            raise ValueError(f"{self._where}: {group_rows[-1]} rows, expected {expected}; {_STALE}")
        if not np.isin(group_rows, first_row).all():
            raise ValueError(f"{self._where}: a row group ends inside a shard; {_STALE}")
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
    """The blocks of the shard in row `index` of shards.parquet, held to that row."""
    if holes := [name for name in BLOCKS_SCHEMA.names if table.column(name).null_count]:
        raise ValueError(f"{where}: rows of {shard.name} hold no {holes[0]} in places; {_STALE}")
    # Copies, so that the rows of other shards are let go.
    columns: dict[str, Array] = {
        name: np.from_dlpack(table.column(name).combine_chunks()).copy()  # to_numpy needs pandas
        for name in table.column_names
    }
    owner = columns.pop("shard")
    for name in ("instances", "tokens"):
        columns[name] = columns[name].astype(np.int64)
    blocks = BlockTable(**columns)
    try:
        if not np.all(owner == index):
            raise ValueError(f"they name another shard than number {index}")  # noqa: TRY301
        check_blocks(blocks, shard)
    except ValueError as error:
        what = f"rows of {shard.name} do not describe it: {error}"
        raise ValueError(f"{where}: {what}; {_STALE}") from error
    return blocks


class _Ahead(SeekableFile):
    """A file read from front to back by few requests: each reads ahead of what is asked for."""

    def __init__(self, read: Read, size: int, ahead: int) -> None:
        super().__init__(size, BLOCKS_TABLE)
        self._read, self._ahead = read, ahead
        self._start, self._data = 0, b""
        self.failure: Exception | None = None
        """What a request raised."""

    def read(self, size: int = -1) -> bytes:
        begin = self._position
        end = self._size if size < 0 else min(self._size, begin + size)
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
