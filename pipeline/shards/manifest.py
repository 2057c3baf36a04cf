"""What a dataset says of itself: manifest.json, pass.json, shards.parquet (docs/format.md, 3)."""

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
    """Parses manifest.json.

    Raises:
        ValueError: Not a manifest, or one of another format version.
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
    said, found = fields.pop(MANIFEST_HASH, None), canonical_hash(fields)
    if found != said:
        raise ValueError(
            f"{where} was edited or damaged: what it holds has the {MANIFEST_HASH} {found},"
            f" expected {said}; restore or rebuild the dataset"
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
    if (found := canonical_hash(manifest.settings)) != (said := manifest.settings_hash):
        raise ValueError(
            f"{where}: its settings have the hash {found}, it says {said}; restore or rebuild the"
            " dataset"
        )
    return manifest


def document_id_bytes(manifest: Manifest) -> int:
    """Bytes of a row of documents.ids: an id, and of several sources the source's number."""
    return 16 + (len(manifest.sources) > 1)


def pass_folder(split: str, seq_len: int, pass_index: int) -> str:
    """Where a pass's shards and pass.json lie: train/L128/pass-00."""
    return f"{split}/L{seq_len}/pass-{pass_index:02d}"


def shard_name(split: str, seq_len: int, pass_index: int, bucket: int) -> str:
    """A shard's path relative to the dataset: train/L128/pass-00/shard-00000.tar."""
    return f"{pass_folder(split, seq_len, pass_index)}/shard-{bucket:05d}.tar"


def pass_hash(shards: Iterable[Shard]) -> str:
    """blake2b-256, in hex, of the sorted lines `shard_name content_hash`."""
    return _hash_lines(f"{shard.name} {shard.content_hash}" for shard in shards)


def root_hash(shards: Iterable[Shard]) -> str:
    """blake2b-256, in hex, of the sorted lines `pass_folder pass_hash`."""
    return _hash_lines(f"{place} {pass_hash(own)}" for place, own in by_pass(shards).items())


def by_pass(shards: Iterable[Shard]) -> dict[str, list[Shard]]:
    """The shards of every pass, by its folder."""
    passes: dict[str, list[Shard]] = {}
    for shard in shards:
        passes.setdefault(shard.folder, []).append(shard)
    return passes


def pass_json(shards: Sequence[Shard], settings_hash: str) -> bytes:
    """pass.json, written when a pass is complete, so that training can follow a running build."""
    rows = [shard_row(shard) for shard in sorted(shards, key=lambda shard: shard.name)]
    hashes = {"pass_hash": pass_hash(shards), "rows_hash": canonical_hash(rows)}
    return json_bytes({"settings_hash": settings_hash, **hashes, "shards": rows})


def parse_pass_json(data: bytes, folder: str, where: str) -> tuple[str, list[Shard]]:
    """The hash of the settings and the shards that a pass.json tells of.

    Raises:
        ValueError: It is damaged, or tells of shards of another folder.
    """
    try:
        fields = json.loads(data)
        shards = [parse_shard_row(row) for row in fields["shards"]]
        found = str(fields["settings_hash"])
        check_rows(shards)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{where}: not a list of shards: {error!r}; run the build again"
        ) from error
    if foreign := [shard.name for shard in shards if shard.folder != folder]:
        raise ValueError(
            f"{where}: tells of {foreign[0]}, expected shards of {folder}; run the build again"
        )
    if not shards or pass_json(shards, found) != data:
        raise ValueError(
            f"{where} is damaged: its hashes are not those of its shards; run the build again"
        )
    return found, shards


def shard_row(shard: Shard) -> dict[str, Any]:
    """A shard as JSON holds it, without what a dataset of one source does not have."""
    row = dataclasses.asdict(shard)
    if not shard.source_tokens:
        del row["source_tokens"]
    return row


def parse_shard_row(row: Mapping[str, Any]) -> Shard:
    """What `shard_row` returned, out of JSON."""
    source_tokens = tuple(row.get("source_tokens", ()))
    return Shard(**{**row, "seal": Seal(**row["seal"]), "source_tokens": source_tokens})


def group_totals(shards: Iterable[Shard]) -> tuple[Group, ...]:
    """Totals per (split, seq_len), sorted."""
    members: dict[tuple[str, int], list[Shard]] = {}
    for shard in shards:
        members.setdefault((shard.split, shard.seq_len), []).append(shard)
    return tuple(
        Group(
            *place,
            passes=len({shard.pass_index for shard in rows}),
            shards=len(rows),
            **{name: sum(getattr(shard, name) for shard in rows) for name in _SUMS},
        )
        for place, rows in sorted(members.items())
    )


def shards_table(shards: Sequence[Shard]) -> bytes:
    """shards.parquet, one row a shard."""
    has_sources = any(shard.source_tokens for shard in shards)
    schema = SHARDS_SCHEMA_OF_SOURCES if has_sources else SHARDS_SCHEMA
    columns = zip(*(_table_row(shard)[: len(schema)] for shard in shards), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def _table_row(shard: Shard) -> tuple[Any, ...]:
    *counts, seal, source_tokens = (getattr(shard, each.name) for each in dataclasses.fields(Shard))
    return *counts, *dataclasses.astuple(seal), source_tokens


def parse_shards_table(data: bytes, where: str) -> list[Shard]:
    """Reads shards.parquet; a ValueError where it is not that table."""
    file = read_parquet(data, SHARDS_SCHEMA, where, SHARDS_SCHEMA_OF_SOURCES)
    with named_damage(where):
        columns = [each.to_pylist() for each in file.read(use_threads=False).columns]
    try:
        shards = [_parse_table_row(*row) for row in zip(*columns, strict=True)]
        check_shards(shards)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; restore or rebuild the dataset") from error
    return shards


def _parse_table_row(*row: Any) -> Shard:
    own, rest = row[: len(SHARDS_SCHEMA)], row[len(SHARDS_SCHEMA) :]
    seal, source_tokens = Seal(*own[-3:]), (tuple(each or ()) for each in rest)
    fields: list[Any] = [*own[:-3], seal, *source_tokens]
    return Shard(*fields)


def _hash_lines(lines: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for line in sorted(lines):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def read_parquet(
    source: Any, schema: pa.Schema, where: str, *others: pa.Schema, num_bytes: int | None = None
) -> pq.ParquetFile:
    """Opens a table from its bytes, or from a file of num_bytes.

    Raises:
        ValueError: It is damaged, too large for its bytes, or of other columns than the schemas.
    """
    with named_damage(where):
        file = open_parquet(source if num_bytes is not None else pa.BufferReader(source))
        names = file.schema_arrow.names
        check_parquet(file, len(source) if num_bytes is None else num_bytes)
    if not any(file.schema_arrow.equals(each) for each in (schema, *others)):
        expected = f"{schema.names} of format {FORMAT_VERSION}"
        raise ValueError(f"{where}: columns are {names}, expected {expected}")
    return file


def open_parquet(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A table whose pages are checked when they are read, by the thread that asks.

    With `pre_buffer` threads of Arrow hold a Python file for some time more: a process that ends
    then dies.
    """
    options = {"pre_buffer": False, "page_checksum_verification": True}
    return pq.ParquetFile(source, metadata=metadata, **options)


_DAMAGE = pa.ArrowException, OSError, ValueError, OverflowError, RuntimeError, MemoryError


@contextlib.contextmanager
def named_damage(where: str, remedy: str = "restore or rebuild the dataset") -> Iterator[None]:
    """Says where a table is that cannot be read, and what to do; a silent store is no damage."""
    try:
        yield
    except (StorageError, SizeError, FileNotFoundError, PermissionError):
        raise
    except _DAMAGE as error:
        said = " ".join(str(error).split())  # Arrow's errors have lines
        raise ValueError(f"{where}: a damaged Parquet table: {said}; {remedy}") from error
