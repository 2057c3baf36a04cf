"""Opens a finished dataset for reading.

The manifest and the shard table are read at once, block tables and blocks as they are asked for.

```python
from pipeline import open_dataset, read_blocks

dataset = open_dataset("s3://bucket/wiki")
for shard in dataset.shards("train", 128, 0):
    for block in read_blocks(dataset, shard, at_once=4):
        print(shard.name, block.num_instances, block.input_ids[:8])
```
"""

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
from pipeline.shards.redactions import is_redacted
from pipeline.shards.unpack import check_segments
from pipeline.storage.ahead import map_ahead
from pipeline.storage.faults import ATTEMPTS, reread_damaged
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import read_object

_RUN_FACTS = "run.json"
"""A file that every run folder of the trainer has."""
_UNFINISHED_SETTINGS = "_tasks/settings.json"
"""The settings of a dataset that is being written (docs/format.md, section 3)."""


class OpenedDataset(NamedTuple):
    """The tables of a dataset as one process has read them, so that others need not read them.

    `Dataset.opened` returns it, and `open_again` opens the dataset from it in another process.

    Attributes:
        url: URL of the dataset.
        manifest: Its manifest.
        shards: All rows of its shard table.
        tables: The content of its block table that stays in memory.
    """

    url: str
    manifest: Manifest
    shards: tuple[Shard, ...]
    tables: OpenedTables


class Dataset:
    """A finished dataset: its manifest, its shards, and its files by name.

    `open_dataset` makes one. Several threads may use the same one.

    Attributes:
        folder: The folder of the dataset.
        manifest: What manifest.json says: settings, special ids, counts, root hash.
        all_shards: Shards of all splits, lengths and passes, in the order of shards.parquet.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        shards: Sequence[Shard],
        tables: OpenedTables | None = None,
    ) -> None:
        """Keeps the arguments; nothing is read yet.

        Args:
            folder: The folder of the dataset.
            manifest: Its manifest.
            shards: All rows of its shard table.
            tables: What has been read of its block table; None if nothing has.
        """
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
        """URL or path at which the dataset was opened."""
        return self.folder.url

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the dataset's vocabulary."""
        return self.manifest.vocab_size

    @property
    def is_local(self) -> bool:
        """Whether the dataset's files are on this machine's own disks."""
        return self.folder.is_local

    def num_passes(self, split: str, seq_len: int) -> int:
        """Returns how many passes the dataset has of one split and length.

        Each pass has its own pairs and masks (docs/format.md, section 1).

        Args:
            split: "train" or "validation".
            seq_len: The most tokens of an instance.

        Raises:
            ValueError: The dataset has no such instances; the message lists what it has.
        """
        for group in self.manifest.groups:
            if (group.split, group.seq_len) == (split, seq_len):
                return group.passes
        choices = ", ".join(f"{group.split} L{group.seq_len}" for group in self.manifest.groups)
        raise ValueError(
            f"{self.url}: no {split} instances of seq_len {seq_len}; the dataset has {choices};"
            " a build with one more of --seq_lens adds a length"
        )

    def shards(self, split: str, seq_len: int, pass_index: int) -> list[Shard]:
        """Returns the shards of one pass, sorted by name; none if there is no such pass.

        Args:
            split: "train" or "validation".
            seq_len: The most tokens of an instance.
            pass_index: The number of the pass, from 0.
        """
        folder = pass_folder(split, seq_len, pass_index)
        members = [shard for shard in self.all_shards if shard.folder == folder]
        return sorted(members, key=lambda shard: shard.name)

    def find_pass(self, split: str, seq_len: int, pass_index: int) -> bool:
        """Returns whether a pass can be read.

        A finished dataset has all its passes. One that is still being built may lack some
        (`pipeline.shards.growing`).

        Raises:
            ValueError: The dataset has no instances of this split and length.
        """
        return pass_index < self.num_passes(split, seq_len)

    def opened(self) -> OpenedDataset:
        """Returns the tables of this dataset, for `open_again` in another process.

        Raises:
            FileNotFoundError: The block table is missing.
            StorageError: The store failed in every attempt.
            ValueError: The block table is damaged.
        """
        read = partial(self.folder.ask, self._tables.open, BLOCKS_TABLE)
        tables = reread_damaged(read, is_local=self.is_local)
        return OpenedDataset(self.url, self.manifest, self.all_shards, tables)

    def blocks(
        self, shard: Shard, attempts: int = ATTEMPTS, keep: Keep | None = None
    ) -> BlockTable:
        """Returns the block table of a shard: places, counts and checksums of its blocks.

        Args:
            shard: A shard of this dataset.
            attempts: How often a store is asked before its error is raised. With 1, errors are
                raised as the store's driver raised them, for callers that try again themselves.
            keep: A cache for the bytes that are read of blocks.parquet; None reads without a cache.
                Its keys contain the sha256 of the file, so bytes of another dataset are not
                mistaken for them.

        Raises:
            FileNotFoundError: The table is missing.
            StorageError: The store failed in every attempt.
            ValueError: The table is damaged, or does not describe the shard.
        """
        row = self._rows[shard.name]
        sha256 = self.manifest.sha256_of(BLOCKS_TABLE)
        keep_by_content = keep and (lambda key, read: keep(f"{BLOCKS_TABLE} {sha256} {key}", read))

        def read_table() -> BlockTable:
            return self._tables.table(row, keep_by_content)

        def read() -> BlockTable:
            return self.folder.ask(read_table, BLOCKS_TABLE, attempts)

        if attempts == 1:
            return read()
        return reread_damaged(read, is_local=self.is_local, is_expected=True)

    def read_bytes(self, name: str, start: int, stop: int) -> bytes:
        """Returns bytes start to stop - 1 of a file, by one request.

        Args:
            name: The file, relative to the dataset.
            start: The first byte.
            stop: One past the last byte.

        Raises:
            FileNotFoundError: The file is missing.
            OSError: The store failed, or returned another number of bytes.
        """
        return self.folder.read_once(name, start, stop)

    def read_file(self, name: str) -> bytes:
        """Returns a small file of the dataset; checks its sha256 if the manifest has one.

        On a store, a file is read several times before it is called missing or damaged.

        Args:
            name: The file, relative to the dataset, such as "vocab.txt".

        Raises:
            FileNotFoundError: The file is missing.
            ValueError: Its sha256 is not the manifest's: it was changed, or is from another build.
        """
        read = partial(self._read_checked, name)
        if self.manifest.sha256_of(name) is None:
            return read()
        return reread_damaged(read, is_local=self.is_local, is_expected=True)

    def _read_checked(self, name: str) -> bytes:
        """Reads a file once, and checks its sha256 if the manifest has one, for `read_file`.

        Raises:
            FileNotFoundError: The file is missing.
            ValueError: The file has another sha256.
        """
        with self._named_absence(name):
            data = self.folder.read(name)
        expected = self.manifest.sha256_of(name)
        if expected is None:
            return data
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != expected:
            raise ValueError(
                f"{self.locate(name)} is not the file that {MANIFEST} speaks of: its sha256 is"
                f" {sha256}, expected {expected}. One of the two was changed, or is of another"
                " build; restore or rebuild the dataset"
            )
        return data

    def _size_of_blocks(self) -> int:
        """Returns the size of blocks.parquet in bytes, by one request."""
        with self._named_absence(BLOCKS_TABLE):
            return self.folder.size(BLOCKS_TABLE, attempts=1)

    @contextlib.contextmanager
    def _named_absence(self, name: str) -> Iterator[None]:
        """Replaces a FileNotFoundError of the body by one with the file's URL and what to do."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.locate(name)} is missing; restore or rebuild the dataset"
            ) from error

    def locate(self, name: str) -> str:
        """Returns the URL of a file of the dataset, for messages."""
        return f"{self.url.rstrip('/')}/{name}"


def open_dataset(url: str, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Opens a finished dataset, and checks that its tables belong to its manifest.

    The manifest and the shard table are read at once. Block tables and blocks are read when they
    are needed, and checked by hashes and checksums (docs/format.md, section 3).

    Args:
        url: The folder of the dataset, on a local disk or at any URL that fsspec knows.
        storage_options: Options of the URL's filesystem, such as `endpoint_url`.

    Returns:
        The dataset. `dataset.shards("train", 128, 0)` lists the shards of a pass, and `read_blocks`
            yields the blocks of a shard.

    Raises:
        FileNotFoundError: The folder has no manifest, because the build is not finished or this is
            another folder, or the shard table is missing.
        StorageError: The store failed in every attempt.
        ValueError: A file is damaged or belongs to another dataset.

    Example:
        ```python
        from pipeline import open_dataset

        dataset = open_dataset("data")
        print(dataset.vocab_size, dataset.num_passes("train", 128))
        ```
    """
    folder = Folder(url, storage_options)
    read = partial(_read_manifest, folder)
    return _open_tables(folder, reread_damaged(read, is_local=folder.is_local, is_expected=True))


def _describe_no_dataset(folder: Folder) -> str:
    """Returns the end of a message: what a folder without a manifest is, and what to do."""
    if folder.exists(_RUN_FACTS):
        return (
            f"holds a training run, which has {_RUN_FACTS}, and no dataset;"
            f" `python -m trainer report {folder.url}` shows the run"
        )
    if folder.exists(_UNFINISHED_SETTINGS):
        settings = read_object(folder, _UNFINISHED_SETTINGS, "remove the folder")
        if is_redacted(settings):
            return (
                f"holds no {MANIFEST}: a redaction that is not finished; run the same `python -m"
                " pipeline redact` again, which continues it"
            )
    return (
        f"holds no {MANIFEST}: not a finished dataset; run `python -m pipeline build` with the same"
        " settings to finish it, or give the folder that was its --output"
    )


def open_again(opened: OpenedDataset, storage_options: Mapping[str, Any] | None = None) -> Dataset:
    """Opens a dataset from the tables that another process has read and checked; reads nothing.

    Args:
        opened: What `Dataset.opened` returned in the other process.
        storage_options: Options of the URL's filesystem.
    """
    url, manifest, shards, tables = opened
    return Dataset(Folder(url, storage_options), manifest, shards, tables)


def _read_manifest(folder: Folder) -> Manifest:
    """Reads manifest.json; raises the errors that `open_dataset` lists."""
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
    """Reads the shard table of a manifest; raises the errors that `open_dataset` lists."""
    where = f"{folder.url}/{MANIFEST}"
    for name in (SHARDS_TABLE, BLOCKS_TABLE):
        if name not in manifest.tables_sha256:
            raise ValueError(f"{where}: tables_sha256 lacks {name}; restore or rebuild the dataset")

    dataset = Dataset(folder, manifest, [])
    shards = parse_shards_table(dataset.read_file(SHARDS_TABLE), dataset.locate(SHARDS_TABLE))
    root = root_hash(shards)
    if root != manifest.root_hash:
        raise ValueError(
            f"{dataset.locate(SHARDS_TABLE)} does not belong to {MANIFEST}: its root hash is"
            f" {root}, the manifest says {manifest.root_hash}; restore or rebuild the dataset"
        )
    return Dataset(folder, manifest, shards)


def read_blocks(dataset: Dataset, shard: Shard, at_once: int = 1) -> Iterator[Block]:
    """Yields the blocks of a shard in order, each after a check of its crc32.

    Blocks are read lazily. To read a whole dataset, loop over `dataset.shards(split, seq_len,
    pass_index)` for every split, length and pass.

    Args:
        dataset: An open dataset.
        shard: One of its shards.
        at_once: With 1, a block is read when it is asked for. A larger number is the number of
            threads that read ahead; then at most 2 * at_once blocks are in memory.

    Yields:
        A block of up to 65,536 // seq_len instances as numpy arrays. `Block` describes them, with
            their shapes and dtypes.

    Raises:
        FileNotFoundError: The shard or the block table is missing.
        StorageError: The store failed in every attempt.
        ValueError: A block is damaged, or does not belong to the dataset. The message names shard
            and block.

    Example:
        ```python
        from pipeline import open_dataset, read_blocks

        dataset = open_dataset("data")
        shard = dataset.shards("train", 128, 0)[0]
        lengths = [block.lengths for block in read_blocks(dataset, shard)]
        ```
    """
    table = dataset.blocks(shard)
    read = partial(_read_block, dataset, shard, table)
    numbers = range(len(table))
    if at_once == 1:
        yield from map(read, numbers)
    else:
        yield from map_ahead(read, numbers, at_once)


def read_block(dataset: Dataset, shard: Shard, number: int) -> Block:
    """Reads one block of a shard; raises the errors that `read_blocks` lists.

    Args:
        dataset: An open dataset.
        shard: One of its shards.
        number: The number of the block in the shard, from 0.
    """
    return _read_block(dataset, shard, dataset.blocks(shard), number)


def _read_block(dataset: Dataset, shard: Shard, table: BlockTable, number: int) -> Block:
    """Reads one block of a shard, given the shard's block table."""
    where = f"{dataset.locate(shard.name)} block {number}"
    start = int(table.offset[number])
    stop = int(table.offset[number] + table.size[number])

    def read() -> bytes:
        data = dataset.folder.read_range(shard.name, start, stop)
        if checksum(data) != int(table.crc32[number]):
            raise ValueError(
                f"{where}: damaged: its crc32 is not the block table's; restore or rebuild the"
                " dataset"
            )
        return data

    data = reread_damaged(read, is_local=dataset.is_local, is_expected=True)
    block = decode_block(data, where)
    check_segments(block, dataset.manifest.settings, where)
    return block
