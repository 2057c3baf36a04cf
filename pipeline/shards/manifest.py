"""What a dataset says of itself: manifest.json, pass.json, shards.parquet (docs/format.md, section 3).

manifest.json is small and written last: its presence means that the dataset is complete. The hashes
cover content, so they are equal on every runner, worker count, part size, order of files and retry.
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

SHARDS_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("seq_len", pa.int32()),
        ("pass", pa.int32()),
        ("name", pa.string()),
        ("bytes", pa.int64()),
        ("sha256", pa.string()),
        ("content_hash", pa.string()),
        ("blocks_hash", pa.string()),
        ("instances", pa.int64()),
        ("tokens", pa.int64()),
        ("masked", pa.int64()),
        ("random_next", pa.int64()),
        ("masked_as_mask", pa.int64()),
        ("masked_kept", pa.int64()),
        ("documents", pa.int64()),
        ("document_tokens", pa.int64()),
        ("documents_xor", pa.string()),
    ]
)
_SEAL_COLUMNS = 3
"""The last columns of SHARDS_SCHEMA, which together are a shard's seal."""
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
        raise ValueError(f"{where}: not a dataset manifest: {error!r}") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{where}: format_version is {version}, this program reads {FORMAT_VERSION}; build the dataset again into"
            " another folder, or read it with the version of this program that wrote it"
        )
    _refuse_edited(fields, where)
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
    if (found := settings_hash(manifest.settings)) != manifest.settings_hash:
        raise ValueError(
            f"{where}: its settings have the hash {found}, it says {manifest.settings_hash}"
        )
    return manifest


def _refuse_edited(fields: dict[str, Any], where: str) -> None:
    """Takes the manifest's own hash out of its fields and compares it with theirs."""
    said, found = fields.pop(MANIFEST_HASH, None), canonical_hash(fields)
    if found != said:
        raise ValueError(
            f"{where} was edited or damaged: what it holds has the {MANIFEST_HASH} {found}, expected {said}; restore"
            " or rebuild the dataset"
        )


def document_id_bytes(manifest: Manifest) -> int:
    """Bytes of a row of documents.ids: an id, of several sources followed by the source's number."""
    return 16 + (len(manifest.sources) > 1)


def pass_folder(split: str, seq_len: int, pass_index: int) -> str:
    """Where a pass's shards and pass.json lie: train/L128/pass-00."""
    return f"{split}/L{seq_len}/pass-{pass_index:02d}"


def shard_name(split: str, seq_len: int, pass_index: int, bucket: int) -> str:
    """A shard's path relative to the dataset: train/L128/pass-00/shard-00000.tar."""
    return f"{pass_folder(split, seq_len, pass_index)}/shard-{bucket:05d}.tar"


def settings_hash(settings: Mapping[str, Any]) -> str:
    """blake2b-256, in hex, of the settings as canonical JSON (sorted keys, no spaces, ASCII)."""
    return canonical_hash(settings)


def pass_hash(shards: Iterable[Shard]) -> str:
    """blake2b-256, in hex, of the sorted lines `shard_name content_hash`."""
    return _hash_lines(f"{shard.name} {shard.content_hash}" for shard in shards)


def root_hash(shards: Iterable[Shard]) -> str:
    """blake2b-256, in hex, of the sorted lines `pass_folder pass_hash`."""
    passes: dict[str, list[Shard]] = {}
    for shard in shards:
        passes.setdefault(pass_folder(shard.split, shard.seq_len, shard.pass_index), []).append(
            shard
        )
    return _hash_lines(f"{folder} {pass_hash(members)}" for folder, members in passes.items())


def pass_json(shards: Sequence[Shard], settings_hash_hex: str) -> bytes:
    """pass.json: written when a pass is complete, so that training can follow a build that is still running."""
    rows = [shard_row(shard) for shard in sorted(shards, key=lambda shard: shard.name)]
    hashes = {
        "settings_hash": settings_hash_hex,
        "pass_hash": pass_hash(shards),
        "rows_hash": canonical_hash(rows),
    }
    return json_bytes({**hashes, "shards": rows})


def parse_pass_json(data: bytes, folder: str, where: str) -> tuple[str, list[Shard]]:
    """The hash of the settings and the shards that a pass.json tells of.

    Args:
        data: What the file holds.
        folder: Folder of the pass, whose shards they must be.
        where: Its URL, for messages.

    Raises:
        ValueError: It is damaged, or tells of other shards.
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
    if foreign := [shard.name for shard in shards if shard.name.rpartition("/")[0] != folder]:
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
    return (
        row
        if shard.source_tokens
        else {name: value for name, value in row.items() if name != "source_tokens"}
    )


def parse_shard_row(row: Mapping[str, Any]) -> Shard:
    """What `shard_row` returned, out of JSON."""
    return Shard(
        **{**row, "seal": Seal(**row["seal"]), "source_tokens": tuple(row.get("source_tokens", ()))}
    )


def group_totals(shards: Iterable[Shard]) -> tuple[Group, ...]:
    """Totals per (split, seq_len), sorted."""
    members: dict[tuple[str, int], list[Shard]] = {}
    for shard in shards:
        members.setdefault((shard.split, shard.seq_len), []).append(shard)
    return tuple(
        Group(
            split=split,
            seq_len=seq_len,
            passes=len({shard.pass_index for shard in rows}),
            shards=len(rows),
            instances=sum(shard.instances for shard in rows),
            tokens=sum(shard.tokens for shard in rows),
            masked=sum(shard.masked for shard in rows),
            random_next=sum(shard.random_next for shard in rows),
            masked_as_mask=sum(shard.masked_as_mask for shard in rows),
            masked_kept=sum(shard.masked_kept for shard in rows),
        )
        for (split, seq_len), rows in sorted(members.items())
    )


def shards_table(shards: Sequence[Shard]) -> bytes:
    """shards.parquet, one row a shard."""
    schema = (
        SHARDS_SCHEMA_OF_SOURCES if any(shard.source_tokens for shard in shards) else SHARDS_SCHEMA
    )
    columns = zip(*(_table_row(shard)[: len(schema)] for shard in shards), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=schema), sink, compression="zstd")
    return sink.getvalue()


def _table_row(shard: Shard) -> tuple[Any, ...]:
    values = [getattr(shard, field.name) for field in dataclasses.fields(Shard)]
    *counts, seal, source_tokens = values
    return *counts, seal.documents, seal.tokens, seal.ids_xor, source_tokens


def parse_shards_table(data: bytes, where: str) -> list[Shard]:
    """Reads shards.parquet.

    Raises:
        ValueError: Not that table.
    """
    file = read_parquet(data, SHARDS_SCHEMA, where, SHARDS_SCHEMA_OF_SOURCES)
    with named_damage(where):
        table = file.read(use_threads=False)
        columns = [table.column(name).to_pylist() for name in SHARDS_SCHEMA.names]
        split = SHARDS_SCHEMA.names.index("split")
        names: dict[str, str] = {}  # a few objects, not one for each of 80,000 shards
        columns[split] = [names.setdefault(each, each) for each in columns[split]]
        columns[-_SEAL_COLUMNS:] = [_join_seals(*columns[-_SEAL_COLUMNS:])]
        if table.num_columns > len(SHARDS_SCHEMA):
            columns.append([tuple(own or ()) for own in table["source_tokens"].to_pylist()])
    del file, table
    pa.default_memory_pool().release_unused()  # 56 MB of 80,000 shards
    try:
        shards = [Shard(*row) for row in zip(*columns, strict=True)]
        check_shards(shards)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; restore or rebuild the dataset") from error
    return shards


def _join_seals(*columns: Sequence[Any]) -> list[Seal]:
    """[N] seals out of their columns; one object for all shards of a bucket."""
    seals: dict[tuple[Any, ...], Seal] = {}
    return [
        seals.get(row) or seals.setdefault(row, Seal(*row)) for row in zip(*columns, strict=True)
    ]


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
        ValueError: It is damaged, too large for its bytes, or has other columns than one of the
            schemas.
    """
    with named_damage(where):
        file = open_parquet(source if num_bytes is not None else pa.BufferReader(source))
        names = file.schema_arrow.names
        check_parquet(file, len(source) if num_bytes is None else num_bytes)
    if not any(file.schema_arrow.equals(each) for each in (schema, *others)):
        raise ValueError(
            f"{where}: columns are {names}, expected {schema.names} of format {FORMAT_VERSION}"
        )
    return file


def open_parquet(source: Any, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A table whose pages are checked when they are read, by the thread that asks.

    Threads of Arrow that read a Python file ahead hold it for some time more: the process dies
    where it ends then (`pre_buffer`).
    """
    return pq.ParquetFile(
        source, metadata=metadata, pre_buffer=False, page_checksum_verification=True
    )


@contextlib.contextmanager
def named_damage(where: str, remedy: str = "restore or rebuild the dataset") -> Iterator[None]:
    """Says where a table is that cannot be read, and what to do. A store that does not answer is no damage."""
    try:
        yield
    except (StorageError, SizeError, FileNotFoundError, PermissionError):
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        OverflowError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise ValueError(f"{where}: a damaged Parquet table: {error}; {remedy}") from error
