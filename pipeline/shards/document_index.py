"""Finds the instances that hold given documents, by the document columns of a dataset's blocks.

The document columns are document_a and document_b of `Block`. A shard has one bucket of documents,
and the first bits of a document's id say which bucket (docs/format.md, section 1). So a document is
looked for in only one shard of each pass. The documents of a shard, with the rows in which they
are, are kept in a cache folder, in one small file per shard:

    CACHE_DIR/documents/7f/7f31...c2.ids     named by the shard's content hash

The content hash is part of the dataset's root hash and covers the document columns, so a file can
never belong to another dataset's shard. A file is written under another name and then renamed, so
several processes may fill the same folder. An interruption loses only the shards that were being
read.

A file has one entry for each document of each instance. The entry is a uint32. Its 30 high bits are
the row of the instance in the shard; bit 1 is set if segment B is from the document, and bit 0 if
segment A is. If both segments are from the same document, they share one entry.

The bytes of a file, little-endian:

- the 8 bytes of `_MAGIC`,
- D, the number of documents, and N, the number of entries, as uint64,
- the first 64 bits of the documents' ids, D ascending uint64,
- the bounds of the documents' entries, D + 1 uint64 (`ShardDocuments.bounds`),
- the entries, N uint32,
- the crc32 of all bytes before it, as uint32.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.shards.block import Array, checksum, decode_documents
from pipeline.shards.dataset import Dataset
from pipeline.shards.instance_kind import has_pairs
from pipeline.shards.manifest import shard_name
from pipeline.shards.records import BlockTable, Shard
from pipeline.storage.ahead import map_ahead
from pipeline.storage.faults import reread_damaged

_MAGIC = b"bbdocs01"
_HEADER_BYTES = len(_MAGIC) + 16
_CRC32_BYTES = 4
_READ_BYTES = 8 * 2**20
"""Blocks are read together up to this many bytes."""
_AT_ONCE = 8
"""Number of shards that are read at the same time."""
_MAX_ROWS = 1 << 30
"""An entry has 30 bits for the row."""

_IS_A = 1
_IS_B = 2


@dataclass(frozen=True)
class Found:
    """The instances that have a segment from one of some documents, as arrays of F elements.

    They are in the order of shards and rows. If both segments of an instance are from documents
    that were asked for, and from different ones, the instance is there twice.

    Attributes:
        document: uint64. The document, the first 64 bits of its id.
        seq_len: int64. The length of the instances of the shard.
        pass_index: int64. The number of the pass.
        shard: int64. The shard, as an index into `dataset.all_shards`: of a finished dataset, the
            row of shards.parquet.
        row: int64. The instance's row in the shard, from 0.
        is_a: bool. Whether segment A is from the document.
        is_b: bool. Whether segment B is from the document. Both are true if B follows A. If
            instances have one segment, it is false.
    """

    document: Array
    seq_len: Array
    pass_index: Array
    shard: Array
    row: Array
    is_a: Array
    is_b: Array

    def __len__(self) -> int:
        return len(self.document)


_COLUMNS = {
    "document": np.uint64,
    **dict.fromkeys(("seq_len", "pass_index", "shard", "row"), np.int64),
    **dict.fromkeys(("is_a", "is_b"), np.bool_),
}
"""The fields of `Found` and their dtypes."""


class DocumentIndex:
    """Says which instances of one split of a dataset hold given documents.

    Nothing is read before `find` asks for it. Several threads and processes may use the same cache
    folder.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        cache_dir: Path,
        say: Callable[[str], object],
        cure: str,
    ) -> None:
        """Keeps the arguments, which are those of `open_document_index`."""
        self.dataset = dataset
        self.split = split
        self.folder = cache_dir / "documents"
        self._say = say
        self._cure = cure

    def find(self, ids: Array, seq_lens: Sequence[int] | None = None) -> Found:
        """Returns the instances of all passes that hold one of the documents.

        If the dataset is being built, these are the passes that `dataset.find_pass` has found.

        Args:
            ids: [Q] uint64, the first 64 bits of documents' ids; duplicates count once.
            seq_lens: The lengths of instances to look for; None for all.

        Raises:
            FileNotFoundError: A shard or the block table is missing.
            StorageError: The store failed in every attempt, or the disk of the cache is full.
            ValueError: A shard is damaged, or holds a document of another bucket than its own; or
                the cache folder cannot be used.
        """
        wanted = np.unique(np.asarray(ids, np.uint64))
        chosen = [place for place in self._places(seq_lens) if place.may_hold(wanted)]
        with self._told_of_reading(chosen):
            parts = list(map_ahead(partial(self._find_in, wanted), chosen, _AT_ONCE))
        return _concatenate(parts)

    def _places(self, seq_lens: Sequence[int] | None) -> Iterator["_ShardPlace"]:
        """Yields the shards of the split in the order of `dataset.all_shards`.

        Args:
            seq_lens: The lengths of instances; None for all.
        """
        passes: dict[str, list[int]] = {}
        for index, shard in enumerate(self.dataset.all_shards):
            if shard.split == self.split and (seq_lens is None or shard.seq_len in seq_lens):
                passes.setdefault(shard.folder, []).append(index)
        for indices in passes.values():
            num_buckets = self._num_buckets([self.dataset.all_shards[index] for index in indices])
            for bucket, index in enumerate(indices):
                yield _ShardPlace(index, self.dataset.all_shards[index], bucket, num_buckets)

    def _num_buckets(self, shards: Sequence[Shard]) -> int:
        """Returns the number of buckets of a pass; 1 if any shard of it may have any document.

        A document's id says its bucket only in a train split of a dataset that `python -m pipeline
        build` made. Such a dataset has a documents_hash in its settings. Its number of buckets is a
        power of two.

        Args:
            shards: All shards of the pass, sorted by name.
        """
        if self.split != "train" or "documents_hash" not in self.dataset.manifest.settings:
            return 1
        expected = [
            shard_name(shard.split, shard.seq_len, shard.pass_index, bucket)
            for bucket, shard in enumerate(shards)
        ]
        is_complete = [shard.name for shard in shards] == expected
        is_power_of_two = len(shards) & (len(shards) - 1) == 0
        return len(shards) if is_complete and is_power_of_two else 1

    @contextlib.contextmanager
    def _told_of_reading(self, places: Sequence["_ShardPlace"]) -> Iterator[None]:
        """Tells the user about shards that must be read because the cache does not have them.

        The first line says how many shards and bytes are read. The line at the end of the `with`
        statement says how long that took and how much space it takes in the cache. Nothing is said
        if the cache has all the shards.

        Args:
            places: The shards that are looked into in the body of the `with` statement.
        """
        missing = [place.shard for place in places if not self._path(place.shard).is_file()]
        if not missing:
            yield
            return
        what = f"{self.dataset.url}: the documents of {len(missing):,} shard(s)"
        num_bytes = sum(shard.num_bytes for shard in missing)
        self._say(f"{what}, {num_bytes / 1e6:,.2f} MB, are read once and kept in {self.folder}")
        began = time.monotonic()
        yield
        kept_bytes = sum(self._path(shard).stat().st_size for shard in missing)
        seconds = time.monotonic() - began
        self._say(f"{what} took {seconds:.1f} s, and take {kept_bytes / 1e6:,.2f} MB there")

    def _find_in(self, wanted: Array, place: "_ShardPlace") -> Found:
        """Returns the instances of one shard that have a segment from one of some documents.

        Args:
            wanted: The first 64 bits of the documents' ids, ascending.
            place: The shard.

        Raises:
            ValueError: The shard is damaged, or has a document of another bucket.
        """
        shard = place.shard
        documents = self._load(shard) or self._build(shard)
        is_foreign = place.is_foreign(documents.ids)
        if is_foreign.any():
            raise ValueError(
                f"{self.dataset.locate(shard.name)} holds the document"
                f" {int(documents.ids[is_foreign][0]):016x}, whose id belongs to another shard;"
                " `python -m pipeline verify --deep true` lists what is wrong, rebuild the dataset"
            )
        document, entry = documents.find(wanted)
        order = np.lexsort((document, entry >> 2))
        entry = entry[order]
        return Found(
            document=document[order],
            seq_len=np.full(len(entry), shard.seq_len, np.int64),
            pass_index=np.full(len(entry), shard.pass_index, np.int64),
            shard=np.full(len(entry), place.index, np.int64),
            row=entry >> 2,
            is_a=(entry & _IS_A).astype(bool),
            is_b=(entry & _IS_B).astype(bool) & has_pairs(self.dataset.manifest.settings),
        )

    def _path(self, shard: Shard) -> Path:
        """Returns the file of the cache that has the documents of a shard."""
        return self.folder / shard.content_hash[:2] / f"{shard.content_hash}.ids"

    def _load(self, shard: Shard) -> "ShardDocuments | None":
        """Returns the documents of a shard from its file in the cache.

        The result is None if the file is missing or damaged.
        """
        with self._named_errors():
            try:
                return parse_documents(self._path(shard).read_bytes())
            except FileNotFoundError:
                return None

    def _build(self, shard: Shard) -> "ShardDocuments":
        """Reads the documents of a shard, and keeps them in the cache.

        Raises:
            ValueError: The shard holds another number of instances than the shard table says, or
                the cache cannot be written.
        """
        pairs = list(_read_documents(self.dataset, shard))
        document_a = np.concatenate([pair[0] for pair in pairs])
        document_b = np.concatenate([pair[1] for pair in pairs])
        if len(document_a) != shard.instances:
            raise ValueError(
                f"{self.dataset.locate(shard.name)} holds {len(document_a)} instances, its row in"
                f" the shard table says {shard.instances}; restore or rebuild the dataset"
            )
        documents = collect_documents(document_a, document_b)
        with self._named_errors():
            _write(self._path(shard), pack_documents(documents))
        return documents

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turns an OSError into a ValueError that names the cache folder."""
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"cache_dir {self.folder.parent}: {error.strerror or error}; {self._cure}"
            ) from error


@dataclass(frozen=True)
class _ShardPlace:
    """A shard, and the bucket by which one sees which documents it can have.

    Attributes:
        index: The index of the shard in `dataset.all_shards`.
        shard: The shard.
        bucket: The number of the shard's bucket.
        num_buckets: The number of buckets of the shard's pass; 1 if the shard can have any
            document.
    """

    index: int
    shard: Shard
    bucket: int
    num_buckets: int

    def may_hold(self, ids: Array) -> bool:
        """Returns whether the shard can have one of some documents.

        Args:
            ids: [Q] uint64, ascending, the first 64 bits of the documents' ids.
        """
        if self.num_buckets == 1:
            return len(ids) > 0
        buckets = _bucket_of(ids, self.num_buckets)
        return bool(
            np.searchsorted(buckets, self.bucket + 1) > np.searchsorted(buckets, self.bucket)
        )

    def is_foreign(self, ids: Array) -> npt.NDArray[np.bool_]:
        """Returns for each document whether its id belongs to another bucket than this shard's.

        This shard must not have such documents. If the shard can have any document, none is
        foreign.

        Args:
            ids: [D] uint64, the first 64 bits of the documents' ids.

        Returns:
            [D] bool.
        """
        if self.num_buckets == 1:
            return np.zeros(len(ids), np.bool_)
        buckets = _bucket_of(ids, self.num_buckets)
        return np.not_equal(buckets, self.bucket, dtype=np.bool_)


def open_document_index(
    dataset: Dataset,
    split: str = "train",
    cache_dir: str | None = None,
    say: Callable[[str], object] = lambda _: None,
    cure: str = "give a folder on a disk of this machine with --cache_dir",
) -> DocumentIndex:
    """Opens the index from documents to instances of one split of a dataset.

    Args:
        dataset: The dataset. If it is still being built, only the passes are searched that
            `dataset.find_pass` has found.
        split: "train" or "validation".
        cache_dir: A folder on a disk of this machine; None for `default_cache_dir()`.
        say: Called with a line for people before shards are read, and with another one after that.
        cure: What a user can do if `cache_dir` cannot be written, for the message.
    """
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    return DocumentIndex(dataset, split, folder, say, cure)


def default_cache_dir() -> Path:
    """Returns the folder beambert in $XDG_CACHE_HOME, which by default is ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beambert"


@dataclass(frozen=True)
class ShardDocuments:
    """The documents of one shard, and the rows in which each of them is.

    Attributes:
        ids: [D] uint64, ascending. The first 64 bits of the documents' ids.
        bounds: [D + 1] int64. Document d has the entries `entries[bounds[d]:bounds[d + 1]]`.
        entries: [N] uint32. One for each document of each instance: the row of the instance times
            4, plus 2 if segment B is from the document, plus 1 if segment A is.
    """

    ids: Array
    bounds: Array
    entries: Array

    def find(self, wanted: Array) -> tuple[Array, Array]:
        """Returns the entries of some documents. Documents that the shard does not have give none.

        Args:
            wanted: [Q] uint64, ascending and distinct, the first 64 bits of the documents' ids.

        Returns:
            documents: [F] uint64, the document of each entry; F is the number of their entries.
            entries: [F] int64, each a number as in `entries` of this class.
        """
        place = np.flatnonzero(np.isin(self.ids, wanted, assume_unique=True))
        counts = self.bounds[place + 1] - self.bounds[place]
        chosen = np.concatenate(
            [np.zeros(0, np.int64)]
            + [np.arange(self.bounds[number], self.bounds[number + 1]) for number in place]
        )
        return np.repeat(self.ids[place], counts), self.entries[chosen].astype(np.int64)


def collect_documents(document_a: Array, document_b: Array) -> ShardDocuments:
    """Returns the documents of a shard and the rows in which each of them is.

    Args:
        document_a: [R] uint64, for each row of the shard the document that A is from.
        document_b: [R] uint64, for each row of the shard the document that B is from.
    """
    assert len(document_a) < _MAX_ROWS, f"{len(document_a)} rows in a shard"
    rows = np.arange(len(document_a), dtype=np.uint32) << np.uint32(2)
    is_same = document_a == document_b
    of_a = rows + np.where(is_same, _IS_A | _IS_B, _IS_A).astype(np.uint32)
    of_b = rows[~is_same] + np.uint32(_IS_B)
    entries = np.concatenate([of_a, of_b])
    documents = np.concatenate([document_a, document_b[~is_same]])
    ids, counts = np.unique(documents, return_counts=True)
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return ShardDocuments(ids, bounds, entries[np.lexsort((entries, documents))])


def pack_documents(documents: ShardDocuments) -> bytes:
    """Returns the bytes of a shard's file in the cache."""
    body = b"".join(
        (
            _MAGIC,
            np.array([len(documents.ids), len(documents.entries)], "<u8").tobytes(),
            documents.ids.astype("<u8").tobytes(),
            documents.bounds.astype("<u8").tobytes(),
            documents.entries.astype("<u4").tobytes(),
        )
    )
    return body + checksum(body).to_bytes(_CRC32_BYTES, "little")


def parse_documents(data: bytes) -> ShardDocuments | None:
    """Returns the documents in the bytes of a shard's file, or None if the bytes are damaged."""
    body = memoryview(data)[:-_CRC32_BYTES]
    if data[: len(_MAGIC)] != _MAGIC or len(data) < _HEADER_BYTES + _CRC32_BYTES:
        return None
    if checksum(body) != int.from_bytes(data[-_CRC32_BYTES:], "little"):
        return None
    num_documents, num_entries = np.frombuffer(body, "<u8", 2, len(_MAGIC)).tolist()
    bounds_start = _HEADER_BYTES + 8 * num_documents
    entries_start = bounds_start + 8 * (num_documents + 1)
    return ShardDocuments(
        ids=np.frombuffer(body, "<u8", num_documents, _HEADER_BYTES),
        bounds=np.frombuffer(body, "<u8", num_documents + 1, bounds_start).astype(np.int64),
        entries=np.frombuffer(body, "<u4", num_entries, entries_start),
    )


def _concatenate(parts: Sequence[Found]) -> Found:
    """Returns the instances of several shards, in their order."""
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])
        for name, dtype in _COLUMNS.items()
    }
    return Found(**columns)


def _write(path: Path, data: bytes) -> None:
    """Writes a file of the cache under a temporary name, and renames it.

    It does not wait until the disk has the bytes (fsync). If a loss of power leaves the file
    incomplete, readers notice by its crc32.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _bucket_of(ids: Array, num_buckets: int) -> npt.NDArray[np.int64]:
    """Returns the number of the bucket of each document, which is the first bits of its id.

    Args:
        ids: uint64, the first 64 bits of the documents' ids.
        num_buckets: The number of buckets, a power of two of at least 2.
    """
    bits = num_buckets.bit_length() - 1
    return (np.asarray(ids, np.uint64) >> np.uint64(64 - bits)).astype(np.int64)


def _read_documents(dataset: Dataset, shard: Shard) -> Iterator[tuple[Array, Array]]:
    """Yields document_a and document_b of each block of a shard, after checking its crc32."""
    table = dataset.blocks(shard)
    for first, stop in _join_blocks(table):
        read = partial(_read_range, dataset, shard, table, first, stop)
        yield from reread_damaged(read, is_local=dataset.is_local, is_expected=True)


def _join_blocks(table: BlockTable) -> Iterator[tuple[int, int]]:
    """Yields ranges (first block, block after the last), each of at most _READ_BYTES if possible.

    The bytes of a range are read by one request. A block that is larger is a range of its own.
    """
    first = 0
    for number in range(len(table)):
        num_bytes = table.offset[number] + table.size[number] - table.offset[first]
        if number > first and num_bytes > _READ_BYTES:
            yield first, number
            first = number
    yield first, len(table)


def _read_range(
    dataset: Dataset, shard: Shard, table: BlockTable, first: int, stop: int
) -> list[tuple[Array, Array]]:
    """Reads blocks first to stop - 1 of a shard at once; returns the documents of each.

    Raises:
        ValueError: A block is damaged.
    """
    start_byte = int(table.offset[first])
    stop_byte = int(table.offset[stop - 1] + table.size[stop - 1])
    data = memoryview(dataset.folder.read_range(shard.name, start_byte, stop_byte))
    pairs = []
    for number in range(first, stop):
        where = f"{dataset.locate(shard.name)} block {number}"
        begin = int(table.offset[number]) - start_byte
        body = data[begin : begin + int(table.size[number])]
        if checksum(body) != int(table.crc32[number]):
            raise ValueError(
                f"{where}: damaged: its crc32 is not the block table's; restore or rebuild the"
                " dataset"
            )
        pairs.append(decode_documents(body, where))
    return pairs
