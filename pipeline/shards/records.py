"""Defines the records of which a dataset's manifest and tables consist (docs/format.md, 3)."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.seal import Seal

MANIFEST_HASH = "manifest_hash"
"""Key in manifest.json of the hash of all its other keys."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard, as one row of shards.parquet describes it.

    Attributes:
        split: "train" or "validation".
        seq_len: The most tokens of an instance.
        pass_index: The number of its pass, from 0.
        name: Its path, relative to the dataset.
        num_bytes: Size of the whole tar file.
        sha256: The sha256 of the tar file, in hex.
        content_hash: Hash of its blocks' values, in hex (docs/format.md, section 4).
        blocks_hash: Hash of its rows in blocks.parquet, in hex (docs/format.md, section 4).
        instances: Number of instances.
        tokens: Number of tokens, [CLS] and [SEP] included.
        masked: Number of masked positions.
        random_next: Number of instances whose B is from another document.
        masked_as_mask: Number of masked positions that show [MASK].
        masked_kept: Number of masked positions that show the original token. Positions in neither
            number show another token.
        seal: The seal of all documents of its bucket: their number, the number of their tokens, and
            the exclusive or of their ids. If the weight of a source is below 1, documents that the
            pass leaves out are included.
        source_tokens: Number of tokens from each source, by the source's number; empty if the
            dataset has one source.
    """

    split: str
    seq_len: int
    pass_index: int
    name: str
    num_bytes: int
    sha256: str
    content_hash: str
    blocks_hash: str
    instances: int
    tokens: int
    masked: int
    random_next: int
    masked_as_mask: int
    masked_kept: int
    seal: Seal
    source_tokens: tuple[int, ...] = ()

    @property
    def folder(self) -> str:
        """Folder of the shard's pass, such as "train/L128/pass-00"."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class BlockTable:
    """The blocks of one shard in order, as its rows of blocks.parquet describe them.

    Its length is the number of blocks, n.

    Attributes:
        offset: [n] int64. First byte of each block's Arrow stream in the tar file.
        size: [n] int64. Bytes of the stream.
        instances: [n] int64. Number of instances of the block.
        tokens: [n] int64. Number of tokens of the block.
        crc32: [n] uint32. zlib's crc32 of the stream.
    """

    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    instances: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    crc32: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offset)

    def digest(self) -> str:
        """Returns the blocks_hash of the shard: blake2b-128, in hex (docs/format.md, section 4)."""
        numbers = np.stack([self.offset, self.size, self.instances, self.tokens]).astype("<i8")
        rows = numbers.tobytes() + self.crc32.astype("<u4").tobytes()
        return hashlib.blake2b(len(self).to_bytes(8, "little") + rows, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Group:
    """Totals over all passes of one split and length. Counts are sums of those of `Shard`.

    Attributes:
        split: "train" or "validation".
        seq_len: The most tokens of an instance.
        passes: Number of passes.
        shards: Number of shards in all passes.
        instances: Number of instances.
        tokens: Number of tokens.
        masked: Number of masked positions.
        random_next: Number of instances whose B is from another document.
        masked_as_mask: Number of masked positions that show [MASK].
        masked_kept: Number of masked positions that show the original token.
    """

    split: str
    seq_len: int
    passes: int
    shards: int
    instances: int
    tokens: int
    masked: int
    random_next: int
    masked_as_mask: int
    masked_kept: int


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json.

    Attributes:
        format_version: Version of the dataset's format.
        software: Names and versions of the programs that wrote the dataset.
        settings: All settings that decide the dataset's content.
        settings_hash: Hash of the settings (docs/format.md, section 4).
        vocab_sha256: The sha256 of vocab.txt.
        tokenizer_sha256: The sha256 of tokenizer.json.
        vocab_size: Number of tokens in the vocabulary.
        special_ids: The ids of the special tokens, by their names "pad", "unk", "cls", "sep" and
            "mask".
        groups: Totals of each split and length.
        counters: Numbers of documents, sentences and tokens by name. Some of the names are
            "documents_read", "dropped_duplicate", and "documents" for the documents that are kept.
        root_hash: Hash of the content of all shards (docs/format.md, section 4).
        seal: Seal of all documents that were kept: their number, their tokens and the exclusive or
            of their ids (docs/format.md, The seal).
        sources: Name, language, weight and counters of each source, by its number.
        tables_sha256: The sha256 of shards.parquet and of blocks.parquet, by file name; empty while
            the build runs.
    """

    format_version: int
    software: Mapping[str, str]
    settings: Mapping[str, Any]
    settings_hash: str
    vocab_sha256: str
    tokenizer_sha256: str
    vocab_size: int
    special_ids: Mapping[str, int]
    groups: tuple[Group, ...]
    counters: Mapping[str, Any]
    root_hash: str
    seal: Seal
    sources: tuple[Mapping[str, Any], ...] = ()
    tables_sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def sha256_of(self, name: str) -> str | None:
        """Returns the sha256 of a file of the dataset, or None if the manifest does not have it."""
        pinned = {"vocab.txt": self.vocab_sha256, "tokenizer.json": self.tokenizer_sha256}
        return {**pinned, **self.tables_sha256}.get(name)

    def to_json(self) -> bytes:
        """Returns the content of manifest.json: these fields and their hash."""
        fields = dataclasses.asdict(self)
        return json_bytes({**fields, MANIFEST_HASH: canonical_hash(fields)})


def canonical_hash(value: Any) -> str:
    """Returns blake2b-256, in hex, of a value as canonical JSON: sorted keys, no spaces, ASCII."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()


def json_bytes(value: Any) -> bytes:
    """Returns a value as JSON for people: sorted keys, indented, with a newline at the end.

    Equal values give equal bytes.
    """
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
