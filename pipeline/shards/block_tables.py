"""Writes and reads blocks.parquet, which says where each block of each shard is in its tar.

docs/format.md, section 3 describes the columns. A small file is read whole. If the file is
large, the footer is read once, and then only the row groups of the requested shards. The file of 5
million blocks in 80,000 shards has 165 MB, and a rank needs only the rows of the shards it reads.
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
"""A row group ends with the shard that brings it to this many rows.

So 140 kB are read for a shard. With one row group per shard the footer would be too large: Arrow
takes 6 kB to describe a row group, which is 480 MB for 80,000 shards.
"""

WHOLE_BYTES = 8 * 2**20
"""Up to this size the file is read whole. Reading row groups costs a round trip for each lane."""

_AHEAD_SHARES = 1.25
"""One request reads up to this many times the bytes of an average row group.

So a row group that is somewhat larger than the average is still read by one request.
"""

_STALE = "it is of another build of the dataset, or damaged: restore it, or rebuild the dataset"

Read = Callable[[int, int], bytes]
"""`read(start, stop)` returns bytes start to stop - 1 of a file."""

Keep = Callable[[str, Callable[[], bytes]], bytes]
"""`keep(key, read)` returns the bytes of a key from a cache, or else calls `read` and keeps them.

The bytes of a key never change.
"""


def blocks_table(tables: Iterable[BlockTable]) -> bytes:
    """Returns the bytes of the file that `write_blocks` writes."""
    sink = io.BytesIO()
    write_blocks(sink, tables)
    return sink.getvalue()


def write_blocks(sink: IO[bytes], tables: Iterable[BlockTable]) -> None:
    """Writes blocks.parquet, with one row per block, holding one row group in memory at a time.

    Args:
        sink: The file, open for writing.
        tables: The block tables of all shards, in the order of shards.parquet.
    """
    options = {"compression": "zstd", "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(sink, BLOCKS_SCHEMA, **options) as writer:
        for first, members in _group_shards(tables):
            shard_rows = np.arange(first, first + len(members))
            columns = {"shard": np.repeat(shard_rows, [len(table) for table in members])}
            for name in BLOCKS_SCHEMA.names[1:]:
                columns[name] = np.concatenate([getattr(table, name) for table in members])
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in BLOCKS_SCHEMA]
            writer.write_table(pa.table(arrays, schema=BLOCKS_SCHEMA))


def open_block_tables(data: bytes, shards: Sequence[Shard], where: str) -> "BlockTables":
    """Returns the block tables in the bytes of a whole file.

    Args:
        data: The bytes of blocks.parquet.
        shards: The rows of shards.parquet that belong to it.
        where: The URL of the file, for messages.
    """
    return BlockTables(lambda start, stop: data[start:stop], lambda: len(data), shards, where)


class OpenedTables(NamedTuple):
    """The content of an open blocks.parquet that stays in memory.

    Attributes:
        whole: All rows of a small file. None for a large file, whose row groups are read when they
            are needed.
        metadata: The footer of the file (`pyarrow.parquet.FileMetaData`).
        num_bytes: Size of the file.
        first_row: [shards + 1] the index of the first row of each shard, and the number of all rows
            at the end.
        group_rows: [row groups + 1] the index of the first row of each row group, and the number of
            all rows at the end.
    """

    whole: pa.Table | None
    metadata: Any
    num_bytes: int
    first_row: Array
    group_rows: Array


class BlockTables:
    """Reads the block tables of shards from one blocks.parquet. Several threads may use it.

    If a table is damaged, the file is opened anew in the next call, because the bytes may have been
    damaged on the network.
    """

    def __init__(
        self,
        read: Read,
        size: Callable[[], int],
        shards: Sequence[Shard],
        where: str,
        opened: OpenedTables | None = None,
    ) -> None:
        """Keeps the arguments; nothing is read yet.

        Args:
            read: Reads a range of the file. `table` passes its errors on.
            size: Returns the size of the file in bytes. `table` passes its errors on.
            shards: The rows of shards.parquet that belong to the file.
            where: The URL of the file, for messages.
            opened: The result of `open` in another process; None if the file is to be read here.
        """
        self._read = read
        self._size = size
        self._shards = shards
        self._where = where
        self._opened = opened

    def table(self, row: int, keep: Keep | None = None) -> BlockTable:
        """Returns the block table of one shard.

        Args:
            row: The row of the shard in shards.parquet.
            keep: A cache for the bytes that are read of the file, which other processes may share;
                None reads without a cache.

        Raises:
            ValueError: The file is damaged, or does not describe the shard.
        """
        opened = self.open(keep)
        try:
            first, stop = opened.first_row[row : row + 2].tolist()
            rows = opened.whole
            start = 0
            if rows is None:
                group = int(np.searchsorted(opened.group_rows, first, side="right")) - 1
                rows = self._read_group(opened, group, self._reader(keep))
                start = int(opened.group_rows[group])
            rows_of_shard = rows.slice(first - start, stop - first)
            return _parse_rows(rows_of_shard, row, self._shards[row], self._where)
        except ValueError:
            self._opened = None
            raise

    def open(self, keep: Keep | None = None) -> OpenedTables:
        """Opens the file, unless it is open, and returns what stays in memory of it.

        There is no lock, so two threads may open the file at the same time. The errors are those of
        `table`.

        Args:
            keep: As in `table`.
        """
        opened = self._opened or self._open(keep)
        self._opened = opened
        return opened

    def _open(self, keep: Keep | None) -> OpenedTables:
        """Reads a small file whole, and of a large one the footer."""
        read = self._reader(keep)
        num_bytes = self._read_size(keep)
        if num_bytes > WHOLE_BYTES:
            with self._reading(read, num_bytes) as source:
                file = read_parquet(source, BLOCKS_SCHEMA, self._where, num_bytes=num_bytes)
            return OpenedTables(None, file.metadata, num_bytes, *self._count_rows(file))
        file = read_parquet(read(0, num_bytes), BLOCKS_SCHEMA, self._where)
        rows = self._count_rows(file)
        with named_damage(self._where):
            return OpenedTables(file.read(use_threads=False), file.metadata, num_bytes, *rows)

    def _read_size(self, keep: Keep | None) -> int:
        """Returns the size of the file in bytes, from the cache if there is one."""
        if keep is None:
            return self._size()
        return int(keep("size", lambda: str(self._size()).encode()))

    def _read_group(self, opened: OpenedTables, group: int, read: Read) -> pa.Table:
        """Reads one row group of a large file.

        A group of up to 1.25 times the average size is read by one request, a larger one by more.

        Args:
            opened: The open file.
            group: The index of the row group.
            read: Reads a range of the file.
        """
        # The average is used because Arrow's own numbers cannot be asked for: if a column's
        # description is damaged, asking ends the process. Reading the column raises an error.
        num_groups = max(1, len(opened.group_rows) - 1)
        share = (opened.num_bytes - opened.metadata.serialized_size) / num_groups
        with self._reading(read, opened.num_bytes, int(_AHEAD_SHARES * share)) as source:
            file = open_parquet(source, metadata=opened.metadata)
            return file.read_row_group(group, use_threads=False)

    def _reader(self, keep: Keep | None) -> Read:
        """Returns the function that reads ranges of the file, through the cache if there is one."""
        if keep is None:
            return self._read
        return lambda start, stop: keep(f"{start}-{stop}", lambda: self._read(start, stop))

    @contextlib.contextmanager
    def _reading(self, read: Read, num_bytes: int, ahead: int = 0) -> Iterator["_Ahead"]:
        """Yields the file in a form that Arrow can read.

        If the store raises an error while Arrow reads, Arrow raises an error of its own instead.
        Then this raises the error of the store again.

        Args:
            read: Reads a range of the file.
            num_bytes: Size of the file.
            ahead: The fewest bytes that one request reads, except at the end of the file.

        Raises:
            ValueError: The file is damaged.
        """
        source = _Ahead(read, num_bytes, ahead)
        try:
            with named_damage(self._where):
                yield source
        except ValueError:
            if source.failure is not None:
                raise source.failure from None
            raise

    def _count_rows(self, file: pq.ParquetFile) -> tuple[Array, Array]:
        """Returns the first row of each shard, and the first row of each row group.

        How many blocks a shard has follows from its instances (docs/format.md, section 3).

        Returns:
            first_row: [shards + 1], with the number of rows at the end.
            group_rows: [row groups + 1], with the number of rows at the end.

        Raises:
            ValueError: The file has another number of rows, or a row group ends inside a shard.
        """
        num_blocks = [
            max(1, -(-shard.instances // block_instances(shard.seq_len))) for shard in self._shards
        ]
        first_row = np.cumsum([0, *num_blocks], dtype=np.int64)
        metadata = file.metadata
        groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        group_rows = np.cumsum([0, *groups], dtype=np.int64)

        if group_rows[-1] != first_row[-1]:
            expected = f"{first_row[-1]} for the blocks of {len(num_blocks)} shards"
            raise ValueError(f"{self._where}: {group_rows[-1]} rows, expected {expected}; {_STALE}")
        if not np.isin(group_rows, first_row).all():
            raise ValueError(f"{self._where}: a row group ends inside a shard; {_STALE}")
        return first_row, group_rows


def _group_shards(tables: Iterable[BlockTable]) -> Iterator[tuple[int, list[BlockTable]]]:
    """Groups block tables into row groups.

    Yields:
        The row in shards.parquet of a group's first shard, and the block tables of the group.
    """
    first = 0
    members: list[BlockTable] = []
    num_rows = 0
    for table in tables:
        members.append(table)
        num_rows += len(table)
        if num_rows >= ROWS_PER_GROUP:
            yield first, members
            first += len(members)
            members = []
            num_rows = 0
    if members:
        yield first, members


def _parse_rows(table: pa.Table, index: int, shard: Shard, where: str) -> BlockTable:
    """Returns a shard's block table, after checking that it describes the shard.

    Args:
        table: The shard's rows of blocks.parquet.
        index: The shard's row in shards.parquet.
        shard: The shard.
        where: The URL of blocks.parquet, for messages.

    Raises:
        ValueError: The rows have nulls, or do not describe the shard.
    """
    incomplete = [name for name in BLOCKS_SCHEMA.names if table.column(name).null_count]
    if incomplete:
        raise ValueError(
            f"{where}: rows of {shard.name} hold no {incomplete[0]} in places; {_STALE}"
        )
    # Columns are copied, so that the rows of other shards do not stay in memory.
    columns: dict[str, Array] = {
        name: np.from_dlpack(table.column(name).combine_chunks()).copy()  # to_numpy needs pandas
        for name in table.column_names
    }
    shard_rows = columns.pop("shard")
    for name in ("instances", "tokens"):
        columns[name] = columns[name].astype(np.int64)
    blocks = BlockTable(**columns)
    try:
        if not np.all(shard_rows == index):
            raise ValueError(f"they name another shard than number {index}")  # noqa: TRY301
        check_blocks(blocks, shard)
    except ValueError as error:
        what = f"rows of {shard.name} do not describe it: {error}"
        raise ValueError(f"{where}: {what}; {_STALE}") from error
    return blocks


class _Ahead(SeekableFile):
    """A file read from front to back by few requests, each for more bytes than were asked for.

    Attributes:
        failure: The error that a request raised, or None.
    """

    def __init__(self, read: Read, size: int, ahead: int) -> None:
        """Starts at the beginning of the file.

        Args:
            read: Reads a range of the file.
            size: Size of the file in bytes.
            ahead: The fewest bytes that one request reads, except at the end of the file.
        """
        super().__init__(size, BLOCKS_TABLE)
        self._read = read
        self._ahead = ahead
        self._start = 0  # of the bytes that were read last
        self._data = b""
        self.failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Reads `size` bytes from the position on, or all that follow if `size` is negative."""
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
