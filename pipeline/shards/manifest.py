"""Writes and parses the files that describe a dataset: manifest.json, pass.json, shards.parquet.

docs/format.md, section 3 describes them, and section 4 their hashes.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards.records import (
    MANIFEST_HASH,
    Group,
    Manifest,
    Shard,
    canonical_hash,
    json_bytes,
)
from pipeline.shards.seal import Seal
from pipeline.shards.table_checks import check_manifest, check_parquet, check_rows, check_shards
from pipeline.storage.faults import SizeError, StorageError

FORMAT_VERSION = 3
MANIFEST = "manifest.json"
SHARDS_TABLE = "shards.parquet"
BLOCKS_TABLE = "blocks.parquet"
DOCUMENT_IDS = "documents.ids"

_SUMS = ("instances", "tokens", "masked", "random_next", "masked_as_mask", "masked_kept")
_COLUMNS = {
    "split": pa.string(),
    **dict.fromkeys(("seq_len", "pass"), pa.int32()),
    "name": pa.string(),
    "bytes": pa.int64(),
    **dict.fromkeys(("sha256", "content_hash", "blocks_hash"), pa.string()),
    **dict.fromkeys((*_SUMS, "documents", "document_tokens"), pa.int64()),
    "documents_xor": pa.string(),
}
SHARDS_SCHEMA = pa.schema(_COLUMNS)
SHARDS_SCHEMA_OF_SOURCES = SHARDS_SCHEMA.append(pa.field("source_tokens", pa.list_(pa.int64())))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parses manifest.json, and checks its hashes, types and ranges.

    Args:
        data: The bytes of the file.
        where: The URL of the file, for messages.

    Raises:
        ValueError: It is not a manifest, has another format version, or was edited or damaged.
    """
    try:
        fields = json.loads(data)
        version = fields["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{where}: not a dataset manifest: {error!r}; restore or rebuild the dataset"
        ) from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{where}: format_version is {version}, this program reads {FORMAT_VERSION}; build the"
            " dataset again into another folder, or read it with the version of this program that"
            " wrote it"
        )

    stated_hash = fields.pop(MANIFEST_HASH, None)
    actual_hash = canonical_hash(fields)
    if actual_hash != stated_hash:
        raise ValueError(
            f"{where} was edited or damaged: what it holds has the {MANIFEST_HASH} {actual_hash},"
            f" expected {stated_hash}; restore or rebuild the dataset"
        )

    try:
        groups = tuple(Group(**group) for group in fields.pop("groups"))
        sources = tuple(fields.pop("sources", ()))
        seal = Seal(**fields.pop("seal"))
        manifest = Manifest(groups=groups, sources=sources, seal=seal, **fields)
        check_manifest(manifest)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"{where}: not a dataset manifest: {error}; restore or rebuild the dataset"
        ) from error

    settings_hash = canonical_hash(manifest.settings)
    if settings_hash != manifest.settings_hash:
        raise ValueError(
            f"{where}: its settings have the hash {settings_hash}, it says"
            f" {manifest.settings_hash}; restore or rebuild the dataset"
        )
    return manifest


def document_id_bytes(manifest: Manifest) -> int:
    """Returns the size of a row of documents.ids, in bytes.

    A row is an id of 16 bytes; if the dataset has several sources, the source's number follows as
    one byte.
    """
    return 16 + (len(manifest.sources) > 1)


def pass_folder(split: str, seq_len: int, pass_index: int) -> str:
    """Returns the folder of a pass's shards and pass.json, such as "train/L128/pass-00"."""
    return f"{split}/L{seq_len}/pass-{pass_index:02d}"


def shard_name(split: str, seq_len: int, pass_index: int, bucket: int) -> str:
    """Returns a shard's path in the dataset, such as "train/L128/pass-00/shard-00000.tar"."""
    return f"{pass_folder(split, seq_len, pass_index)}/shard-{bucket:05d}.tar"


def pass_hash(shards: Iterable[Shard]) -> str:
    """Returns the hash of the content of a pass (docs/format.md, section 4).

    It is blake2b-256, in hex, of the sorted lines `shard_name content_hash`.

    Args:
        shards: All shards of the pass, in any order.
    """
    return _hash_lines(f"{shard.name} {shard.content_hash}" for shard in shards)


def root_hash(shards: Iterable[Shard]) -> str:
    """Returns the hash of the content of a dataset (docs/format.md, section 4).

    It is blake2b-256, in hex, of the sorted lines `pass_folder pass_hash`.

    Args:
        shards: All shards of the dataset, or of some of its passes, in any order.
    """
    passes = by_pass(shards)
    return _hash_lines(f"{folder} {pass_hash(members)}" for folder, members in passes.items())


def by_pass(shards: Iterable[Shard]) -> dict[str, list[Shard]]:
    """Groups shards by the folder of their pass."""
    passes: dict[str, list[Shard]] = {}
    for shard in shards:
        passes.setdefault(shard.folder, []).append(shard)
    return passes


def pass_json(shards: Sequence[Shard], settings_hash: str) -> bytes:
    """Returns the content of pass.json, which is written when a pass is complete.

    Training that follows a running build reads it.

    Args:
        shards: All shards of the pass, in any order.
        settings_hash: The hash of the build's settings.
    """
    rows = [shard_row(shard) for shard in sorted(shards, key=lambda shard: shard.name)]
    hashes = {"pass_hash": pass_hash(shards), "rows_hash": canonical_hash(rows)}
    return json_bytes({"settings_hash": settings_hash, **hashes, "shards": rows})


def parse_pass_json(data: bytes, folder: str, where: str) -> tuple[str, list[Shard]]:
    """Parses pass.json.

    Args:
        data: The bytes of the file.
        folder: The folder of the pass, in which its shards must be.
        where: The URL of the file, for messages.

    Returns:
        The hash of the build's settings, and the shards of the pass.

    Raises:
        ValueError: The file is damaged, or lists shards of another folder.
    """
    try:
        fields = json.loads(data)
        shards = [parse_shard_row(row) for row in fields["shards"]]
        settings_hash = str(fields["settings_hash"])
        check_rows(shards)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{where}: not a list of shards: {error!r}; run the build again"
        ) from error
    foreign = [shard.name for shard in shards if shard.folder != folder]
    if foreign:
        raise ValueError(
            f"{where}: tells of {foreign[0]}, expected shards of {folder}; run the build again"
        )
    if not shards or pass_json(shards, settings_hash) != data:
        raise ValueError(
            f"{where} is damaged: its hashes are not those of its shards; run the build again"
        )
    return settings_hash, shards


def shard_row(shard: Shard) -> dict[str, Any]:
    """Returns a shard's row as a JSON object; source_tokens are left out if there is one source."""
    row = dataclasses.asdict(shard)
    if not shard.source_tokens:
        del row["source_tokens"]
    return row


def parse_shard_row(row: Mapping[str, Any]) -> Shard:
    """Returns the shard of a row that `shard_row` made.

    Raises:
        AttributeError, KeyError, TypeError: The row is not that of a shard.
    """
    source_tokens = tuple(row.get("source_tokens", ()))
    return Shard(**{**row, "seal": Seal(**row["seal"]), "source_tokens": source_tokens})


def group_totals(shards: Iterable[Shard]) -> tuple[Group, ...]:
    """Adds up shards by split and length; returns the totals, sorted by split and length."""
    members: dict[tuple[str, int], list[Shard]] = {}
    for shard in shards:
        members.setdefault((shard.split, shard.seq_len), []).append(shard)
    return tuple(
        Group(
            split,
            seq_len,
            passes=len({shard.pass_index for shard in rows}),
            shards=len(rows),
            **{name: sum(getattr(shard, name) for shard in rows) for name in _SUMS},
        )
        for (split, seq_len), rows in sorted(members.items())
    )


def shards_table(shards: Sequence[Shard]) -> bytes:
    """Returns the content of shards.parquet: one row per shard, in the order of the shards."""
    has_sources = any(shard.source_tokens for shard in shards)
    schema = SHARDS_SCHEMA_OF_SOURCES if has_sources else SHARDS_SCHEMA
    columns = zip(*(_table_row(shard)[: len(schema)] for shard in shards), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def _table_row(shard: Shard) -> tuple[Any, ...]:
    """Returns a shard's row of shards.parquet, in the order of SHARDS_SCHEMA_OF_SOURCES."""
    values = [getattr(shard, field.name) for field in dataclasses.fields(Shard)]
    *counts, seal, source_tokens = values
    return *counts, *dataclasses.astuple(seal), source_tokens


def parse_shards_table(data: bytes, where: str) -> list[Shard]:
    """Parses shards.parquet, and checks every row of it.

    Args:
        data: The bytes of the file.
        where: The URL of the file, for messages.

    Raises:
        ValueError: The file is damaged, or a row has impossible values.
    """
    file = read_parquet(data, SHARDS_SCHEMA, where, SHARDS_SCHEMA_OF_SOURCES)
    with named_damage(where):
        columns = [column.to_pylist() for column in file.read(use_threads=False).columns]
    try:
        shards = [_parse_table_row(*row) for row in zip(*columns, strict=True)]
        check_shards(shards)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; restore or rebuild the dataset") from error
    return shards


def _parse_table_row(*row: Any) -> Shard:
    """Returns the shard of a row of shards.parquet, with or without a column source_tokens."""
    *counts, documents, document_tokens, documents_xor = row[: len(SHARDS_SCHEMA)]
    seal = Seal(documents, document_tokens, documents_xor)
    source_tokens = [tuple(tokens or ()) for tokens in row[len(SHARDS_SCHEMA) :]]
    fields: list[Any] = [*counts, seal, *source_tokens]
    return Shard(*fields)


def _hash_lines(lines: Iterable[str]) -> str:
    """Returns blake2b-256, in hex, of the sorted lines, each with a newline."""
    digest = hashlib.blake2b(digest_size=32)
    for line in sorted(lines):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def read_parquet(
    source: Any, schema: pa.Schema, where: str, *others: pa.Schema, num_bytes: int | None = None
) -> pq.ParquetFile:
    """Opens a Parquet table, and checks its columns and the sizes that its footer states.

    Args:
        source: The bytes of the file; or, if `num_bytes` is given, an open file.
        schema: The columns that the table must have.
        where: The URL of the file, for messages.
        others: Further schemas that the table may have instead.
        num_bytes: The size of the open file; None if `source` is bytes.

    Raises:
        ValueError: The table is damaged, claims more rows than its bytes can hold, or has other
            columns.
    """
    with named_damage(where):
        file = open_parquet(source if num_bytes is not None else pa.BufferReader(source))
        names = file.schema_arrow.names
        check_parquet(file, len(source) if num_bytes is None else num_bytes)
    if not any(file.schema_arrow.equals(known) for known in (schema, *others)):
        expected = f"{schema.names} of format {FORMAT_VERSION}"
        raise ValueError(f"{where}: columns are {names}, expected {expected}")
    return file


def open_parquet(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Opens a Parquet file. When its pages are read, their checksums are checked.

    `pre_buffer` is off, so only the calling thread reads the file. Otherwise threads of Arrow would
    keep a Python file for some time after the call, and a process that ends in this time crashes.

    Args:
        source: An open file, or a buffer of Arrow's.
        metadata: The file's footer, if it has been read already.
    """
    return pq.ParquetFile(
        source, metadata=metadata, pre_buffer=False, page_checksum_verification=True
    )


_DAMAGE = pa.ArrowException, OSError, ValueError, OverflowError, RuntimeError, MemoryError


@contextlib.contextmanager
def named_damage(where: str, remedy: str = "restore or rebuild the dataset") -> Iterator[None]:
    """Turns errors of reading a Parquet table into a ValueError that names the table.

    Errors of the store, and of a file that is missing, are passed on: they are no damage.

    Args:
        where: The URL of the table.
        remedy: What to do about a damaged table; the end of the message.

    Raises:
        ValueError: The table is damaged.
    """
    try:
        yield
    except (StorageError, SizeError, FileNotFoundError, PermissionError):
        raise
    except _DAMAGE as error:
        cause = " ".join(str(error).split())  # Arrow's messages have several lines
        raise ValueError(f"{where}: a damaged Parquet table: {cause}; {remedy}") from error
