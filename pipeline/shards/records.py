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

    @property
    def folder(self) -> str:
        """The folder of its pass: train/L128/pass-00."""
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class BlockTable:
    """Where the Arrow bytes of a shard's blocks lie in its tar, in order; [n] int64, n blocks."""

    offset: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    instances: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    crc32: npt.NDArray[np.uint32]
    """[n] of the stored bytes (zlib)."""

    def __len__(self) -> int:
        return len(self.offset)

    def digest(self) -> str:
        """The blocks_hash of these rows: blake2b-128, in hex (docs/format.md, section 4)."""
        numbers = np.stack([self.offset, self.size, self.instances, self.tokens]).astype("<i8")
        rows = numbers.tobytes() + self.crc32.astype("<u4").tobytes()
        return hashlib.blake2b(len(self).to_bytes(8, "little") + rows, digest_size=16).hexdigest()


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
    """manifest.json."""

    format_version: int
    software: Mapping[str, str]
    """Names and versions of what wrote the dataset."""
    settings: Mapping[str, Any]
    """Every setting that changes content."""
    settings_hash: str
    vocab_sha256: str
    tokenizer_sha256: str
    vocab_size: int
    special_ids: Mapping[str, int]
    """Ids of pad, unk, cls, sep and mask."""
    groups: tuple[Group, ...]
    counters: Mapping[str, Any]
    """Documents and characters read, dropped by reason, kept."""
    root_hash: str
    seal: Seal
    """The seal of all documents that were kept."""
    sources: tuple[Mapping[str, Any], ...] = ()
    """Name, language, weight and counters of each source, by its number."""
    tables_sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The sha256 of shards.parquet and blocks.parquet, by name; none while the build goes on."""

    def sha256_of(self, name: str) -> str | None:
        """sha256 of a file of the dataset; None of files that the manifest does not pin."""
        pinned = {"vocab.txt": self.vocab_sha256, "tokenizer.json": self.tokenizer_sha256}
        return {**pinned, **self.tables_sha256}.get(name)

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
