"""A finished dataset opened for reading: its manifest, shard table, and block tables as needed."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline.shards.block import Block, checksum, decode_block
from pipeline.shards.block_tables import BlockTables, Keep, OpenedTables
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    SHARDS_TABLE,
    parse_manifest,
    parse_shards_table,
    pass_folder,
    root_hash,
)
from pipeline.shards.records import BlockTable, Manifest, Shard
from pipeline.storage.ahead import map_ahead
from pipeline.storage.faults import ATTEMPTS, reread_damaged
from pipeline.storage.folder import Folder

_RUN_FACTS = "run.json"  # of the trainer's runs


class OpenedDataset(NamedTuple):
    """What one process has read of a dataset's tables, for others to open it without."""

    url: str
    manifest: Manifest
    shards: tuple[Shard, ...]
    tables: OpenedTables


class Dataset:
    """Shards at a URL, in the order of shards.parquet; safe to use from several threads."""

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        shards: Sequence[Shard],
        tables: OpenedTables | None = None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.all_shards = tuple(shards)
        self._rows = {shard.name: row for row, shard in enumerate(shards)}
        self._tables = BlockTables(
            lambda start, stop: self.read_bytes(BLOCKS_TABLE, start, stop),
            self._size_of_blocks,
            self.all_shards,
            self.locate(BLOCKS_TABLE),
            tables,
        )

    @property
    def url(self) -> str:
        """Where it was opened."""
        return self.folder.url

    @property
    def vocab_size(self) -> int:
        """Entries of its vocabulary."""
        return self.manifest.vocab_size

    @property
    def is_local(self) -> bool:
        """Whether its files are on this machine's own disks."""
        return self.folder.is_local

    def num_passes(self, split: str, seq_len: int) -> int:
        """Passes of one split and length; a ValueError shows what there is where it has none."""
        for group in self.manifest.groups:
            if (group.split, group.seq_len) == (split, seq_len):
                return group.passes
        choices = ", ".join(f"{group.split} L{group.seq_len}" for group in self.manifest.groups)
        raise ValueError(
            f"{self.url}: no {split} instances of seq_len {seq_len}; the dataset has {choices};"
            " a build with one more of --seq_lens adds a length"
        )

    def shards(self, split: str, seq_len: int, pass_index: int) -> list[Shard]:
        """The shards of one pass, sorted by name."""
        folder = pass_folder(split, seq_len, pass_index)
        found = [shard for shard in self.all_shards if shard.folder == folder]
        return sorted(found, key=lambda shard: shard.name)

    def find_pass(self, split: str, seq_len: int, pass_index: int) -> bool:
        """Whether a pass can be read; a finished dataset has all, one that grows may not."""
        return pass_index < self.num_passes(split, seq_len)

    def opened(self) -> OpenedDataset:
        """What `open_again` takes in another process; raises as `blocks`."""
        read = partial(self.folder.ask, self._tables.open, BLOCKS_TABLE)
        tables = reread_damaged(read, is_local=self.is_local)
        return OpenedDataset(self.url, self.manifest, self.all_shards, tables)

    def blocks(
        self, shard: Shard, attempts: int = ATTEMPTS, keep: Keep | None = None
    ) -> BlockTable:
        """Where a shard's blocks lie.

        Args:
            shard: A shard of this dataset.
            attempts: On stores; 1 for callers that try again themselves, who then see the error as
                it came.
            keep: Keeps what is read of the table, by keys that name it for good.

        Raises:
            FileNotFoundError: The table is missing.
            StorageError: The store failed in every attempt.
            ValueError: The table is damaged, or does not describe the shard.
        """
        row, name = self._rows[shard.name], self.manifest.sha256_of(BLOCKS_TABLE)
        named = keep and (lambda key, read: keep(f"{BLOCKS_TABLE} {name} {key}", read))

        def read() -> BlockTable:
            return self.folder.ask(lambda: self._tables.table(row, named), BLOCKS_TABLE, attempts)

        if attempts == 1:
            return read()
        return reread_damaged(read, is_local=self.is_local, is_expected=True)

    def read_bytes(self, name: str, start: int, stop: int) -> bytes:
        """Bytes start to stop - 1 of a file, by one request; OSError where another number comes."""
        return self.folder.read_once(name, start, stop)

    def read_file(self, name: str) -> bytes:
        """Returns a small file of the dataset; checks its sha256 if the manifest has one.

        On a store, a file is read several times before it is called missing or damaged.

        Raises:
            FileNotFoundError: The file is missing.
            ValueError: Its sha256 is not the manifest's: it was changed, or is from another build.
        """
        read = partial(self._read_checked, name)
        if self.manifest.sha256_of(name) is None:
            return read()
        return reread_damaged(read, is_local=self.is_local, is_expected=True)

    def _read_checked(self, name: str) -> bytes:
        with self._named_absence(name):
            data = self.folder.read(name)
        expected = self.manifest.sha256_of(name)
        if expected is not None and (found := hashlib.sha256(data).hexdigest()) != expected:
            raise ValueError(
                f"{self.locate(name)} is not the file that {MANIFEST} speaks of: its sha256 is"
                f" {found}, expected {expected}. One of the two was changed, or is of another"
                " build; restore or rebuild the dataset"
            )
        return data

    def _size_of_blocks(self) -> int:
        with self._named_absence(BLOCKS_TABLE):
            return self.folder.size(BLOCKS_TABLE, attempts=1)

    @contextlib.contextmanager
    def _named_absence(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            advice = "restore or rebuild the dataset"
            raise FileNotFoundError(f"{self.locate(name)} is missing; {advice}") from error

    def locate(self, name: str) -> str:
        """The URL of a file of the dataset, for messages."""
        return f"{self.url.rstrip('/')}/{name}"


def open_dataset(url: str, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Opens a finished dataset and checks that its tables are the manifest's own.

    Raises:
        FileNotFoundError: There is no manifest (an unfinished build, or another folder) or no shard
            table.
        ValueError: A file is damaged or belongs to another dataset.
    """
    folder = Folder(url, storage_options)
    read = partial(_read_manifest, folder)
    return _open_tables(folder, reread_damaged(read, is_local=folder.is_local, is_expected=True))


def _describe_no_dataset(folder: Folder) -> str:
    """Returns what a folder without a manifest is, and what to do; the end of a message."""
    if folder.exists(_RUN_FACTS):
        return (
            f"holds a training run, which has {_RUN_FACTS}, and no dataset;"
            f" `python -m trainer report {folder.url}` shows the run"
        )
    return (
        f"holds no {MANIFEST}: not a finished dataset; run `python -m pipeline build` with the same"
        " settings to finish it, or give the folder that was its --output"
    )


def open_again(opened: OpenedDataset, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """The dataset that another process has opened and checked; nothing is read."""
    url, manifest, shards, tables = opened
    return Dataset(Folder(url, storage_options), manifest, shards, tables)


def _read_manifest(folder: Folder) -> Manifest:
    """Reads manifest.json; its errors are those of `open_dataset`."""
    where = f"{folder.url}/{MANIFEST}"
    if not folder.exists(MANIFEST):
        raise FileNotFoundError(f"{folder.url} {_describe_no_dataset(folder)}")
    try:
        data = folder.read(MANIFEST)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{where} is listed, but cannot be read: it was removed just now, or the store does"
            " not give what it shows; try again, or restore the dataset"
        ) from error
    return parse_manifest(data, where)


def _open_tables(folder: Folder, manifest: Manifest) -> Dataset:
    """Reads the shard table of a manifest; its errors are those of `open_dataset`."""
    where = f"{folder.url}/{MANIFEST}"
    for name in (SHARDS_TABLE, BLOCKS_TABLE):
        if name not in manifest.tables_sha256:
            lacks = f"tables_sha256 lacks {name}"
            raise ValueError(f"{where}: {lacks}; restore or rebuild the dataset")
    dataset = Dataset(folder, manifest, [])
    shards = parse_shards_table(dataset.read_file(SHARDS_TABLE), dataset.locate(SHARDS_TABLE))
    if (found := root_hash(shards)) != manifest.root_hash:
        raise ValueError(
            f"{dataset.locate(SHARDS_TABLE)} does not belong to {MANIFEST}: its root hash is"
            f" {found}, the manifest says {manifest.root_hash}; restore or rebuild the dataset"
        )
    return Dataset(folder, manifest, shards)


def read_blocks(dataset: Dataset, shard: Shard, at_once: int = 1) -> Iterator[Block]:
    """A shard's blocks in order, of which at_once are read ahead; a ValueError names damage."""
    table = dataset.blocks(shard)
    read = partial(_read_block, dataset, shard, table)
    numbers = range(len(table))
    yield from map(read, numbers) if at_once == 1 else map_ahead(read, numbers, at_once)


def read_block(dataset: Dataset, shard: Shard, number: int) -> Block:
    """One block of a shard, as `read_blocks`."""
    return _read_block(dataset, shard, dataset.blocks(shard), number)


def _read_block(dataset: Dataset, shard: Shard, table: BlockTable, number: int) -> Block:
    where = f"{dataset.locate(shard.name)} block {number}"
    start, stop = int(table.offset[number]), int(table.offset[number] + table.size[number])

    def read() -> bytes:
        data = dataset.folder.read_range(shard.name, start, stop)
        if checksum(data) != int(table.crc32[number]):
            said = "damaged: its crc32 is not the block table's"
            raise ValueError(f"{where}: {said}; restore or rebuild the dataset")
        return data

    data = reread_damaged(read, is_local=dataset.is_local, is_expected=True)
    return decode_block(data, where)
