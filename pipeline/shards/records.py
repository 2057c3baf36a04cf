"""What a dataset's manifest and tables hold, as plain records (docs/format.md, section 3)."""

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
    """One row of shards.parquet.

    `name` is relative to the dataset, `num_bytes` counts the whole tar file, `blocks_hash` is its
    block table's digest. Of the `masked` positions, `masked_as_mask` show [MASK], `masked_kept` the
    token itself, and the rest other tokens. `seal` is of the documents of its bucket, whether or
    not weights use them in its pass. `source_tokens` are the tokens of each source, by its number;
    there are none where a dataset has one source.
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


@dataclass(frozen=True)
class BlockTable:
    """The blocks of one shard, in order, n blocks: where each one's Arrow bytes lie in the tar file.

    Attributes:
        offset: [n] int64; first byte.
        size: [n] int64; bytes.
        instances: [n] int64.
        tokens: [n] int64.
        crc32: [n] uint32 of the stored bytes (zlib).
    """

    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    instances: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    crc32: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.offset)

    def digest(self) -> str:
        """blake2b-128, in hex, of these rows (docs/format.md, section 4): the table a shard's row speaks of, or not."""
        numbers = np.stack([self.offset, self.size, self.instances, self.tokens]).astype("<i8")
        rows = (
            len(self).to_bytes(8, "little") + numbers.tobytes() + self.crc32.astype("<u4").tobytes()
        )
        return hashlib.blake2b(rows, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Group:
    """Totals of one (split, seq_len) over its passes."""

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
    """manifest.json.

    Attributes:
        format_version: Version of the format of shards and tables.
        software: Names and versions of what wrote the dataset.
        settings: Every setting that changes content.
        settings_hash: blake2b-256 of the settings.
        vocab_sha256: The sha256 of vocab.txt.
        tokenizer_sha256: The sha256 of tokenizer.json.
        vocab_size: Entries of vocab.txt.
        special_ids: Ids of pad, unk, cls, sep and mask.
        groups: Totals per split and length.
        counters: Documents and characters read, dropped by reason, kept.
        root_hash: blake2b-256 over all passes' hashes.
        seal: The seal of all documents that were kept.
        sources: Name, language, weight and counters of each source, by its number.
        tables_sha256: The sha256 of shards.parquet and blocks.parquet as they are stored, by name;
            none while the build is in progress.
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
        """sha256 of a file of the dataset, by its name; None of files that the manifest does not pin."""
        pinned = {
            "vocab.txt": self.vocab_sha256,
            "tokenizer.json": self.tokenizer_sha256,
            **self.tables_sha256,
        }
        return pinned.get(name)

    def to_json(self) -> bytes:
        """What manifest.json holds: these fields and their hash."""
        fields = dataclasses.asdict(self)
        return json_bytes({**fields, MANIFEST_HASH: canonical_hash(fields)})


def canonical_hash(value: Any) -> str:
    """blake2b-256, in hex, of a value as canonical JSON: sorted keys, no spaces, ASCII."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()


def json_bytes(value: Any) -> bytes:
    """Readable, deterministic JSON: sorted keys, two spaces, one newline at the end."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
