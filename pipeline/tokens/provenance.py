"""Where documents come from, by the start of their ids, and which hold text of task files.

A document is found by one small read of the index of each part that holds its id prefix, then of
one row group of `NAME.places` (Parquet, row for row as the index). `NAME.overlaps` is JSON lines.
"""

import io
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents.source import UNIT
from pipeline.documents.sources import count_uses
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import named_damage, open_parquet
from pipeline.shards.records import Manifest
from pipeline.storage.folder import Folder
from pipeline.storage.json_files import expected_fields, parse_json, read_object
from pipeline.storage.names import require_plain
from pipeline.storage.quoting import printable
from pipeline.storage.secret_values import hide
from pipeline.text.task_texts import Overlap
from pipeline.tokens.buckets import PREFIX_BITS
from pipeline.tokens.dropped_ids import read_dropped_ids
from pipeline.tokens.grouped_rows import read_rows
from pipeline.tokens.held_out import most_document_tokens
from pipeline.tokens.limits import VALIDATION_TOKENS
from pipeline.tokens.token_index import find_prefix_rows
from pipeline.tokens.token_parts import ID_BYTES, INDEX_DTYPE, LAYOUT, TokenizedDocument, join_id

PLACES_SCHEMA = pa.schema(
    [("id", pa.binary(ID_BYTES)), ("source", pa.uint8()), ("place", pa.string())]
)
TOKENS_FOLDER = "tokens"
OVERLAPS = ".overlaps"
OVERLAPS_TABLE = "task_overlaps.parquet"
_OVERLAPS_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "document", "task_text", "words")]
)
_ROWS_PER_GROUP = 4096
_NUM_THREADS = 16
_REMEDY = "delete the folder of tokens"
_ID_START = re.compile("[0-9a-f]{8,32}")


@dataclass(frozen=True)
class FoundDocument:
    """A document as one place of the input (FILE:LINE, FILE...) holds it."""

    id: bytes
    source: int
    place: str
    cleaned_bytes: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class EncodedDocuments:
    """The encoded documents of a dataset; `store` is tokens.json."""

    folder: Folder
    store: Mapping[str, Any]


def pack_places(documents: Sequence[TokenizedDocument]) -> bytes:
    """The file of places of a part, in the order of its index."""
    ordered = sorted(documents, key=lambda document: document.id)
    columns = {
        "id": [document.id for document in ordered],
        "source": [document.source for document in ordered],
        "place": [writable(document.where) for document in ordered],
    }
    sink = io.BytesIO()
    table = pa.table(columns, schema=PLACES_SCHEMA)
    pq.write_table(table, sink, compression="zstd", row_group_size=_ROWS_PER_GROUP)
    return sink.getvalue()


def writable(place: str) -> str:
    """Without secrets; a name that is no UTF-8 has surrogates, which no file can hold."""
    return hide(place).encode(errors="replace").decode()


def pack_overlaps(overlaps: Sequence[tuple[str, str, Overlap]]) -> bytes:
    """The file of overlaps: a document's id and place, the text's place, and the words of both."""
    rows = (
        (document, writable(where), writable(each.place), each.words)
        for document, where, each in overlaps
    )
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def write_overlaps(
    tokens: Folder, part_names: Sequence[str], output: Folder, expected: int
) -> None:
    """Writes the overlaps of all parts into one table, part by part.

    Args:
        tokens: Holds the token parts; a part without overlaps has no file of them.
        part_names: Names of the parts.
        output: The folder that the table is written into.
        expected: The number of documents that were counted as overlapping: the table's rows.

    Raises:
        ValueError: The number of rows is not `expected`, or a file is damaged.
    """
    sizes = tokens.list()
    number = num_files = 0
    names = [name for part in sorted(part_names) if (name := f"{part}{OVERLAPS}") in sizes]
    with tempfile.NamedTemporaryFile(prefix="beambert-", suffix=".parquet") as file:
        with pq.ParquetWriter(file.name, _OVERLAPS_SCHEMA) as writer:
            for data in tokens.read_each(names, sizes):
                where = tokens.locate(names[num_files])
                writer.write_table(_parse_overlaps(data, where))
                num_files += 1
                number += len(data.splitlines())
        if number != expected:
            raise ValueError(
                f"{tokens.locate()}: {num_files} files of {OVERLAPS} list {number:,} documents that"
                f" hold text of task files, tokens.json counts {expected:,}: the store does not"
                " list all of them, or one is gone; run the same command again, and if it says so"
                f" again, {_REMEDY} first"
            )
        output.write(OVERLAPS_TABLE, Path(file.name))


def _parse_overlaps(data: bytes, where: str) -> pa.Table:
    rows = [parse_json(line, where, _REMEDY) for line in data.splitlines()]
    try:
        columns = list(map(list, zip(*rows, strict=True)))
        return pa.table(columns, schema=_OVERLAPS_SCHEMA)
    except (TypeError, ValueError, pa.ArrowException) as error:
        expected = f"lists of {', '.join(_OVERLAPS_SCHEMA.names)}"
        raise ValueError(f"{where} is damaged: {error}, expected {expected}; {_REMEDY}") from error


def find_tokens(
    dataset: Dataset, url: str | None = None, options: Mapping[str, Any] | None = None
) -> EncodedDocuments | None:
    """A dataset's encoded documents, by default below it; None where they are gone or others."""
    folder = dataset.folder / TOKENS_FOLDER if url is None else Folder(url, options)
    if not folder.exists("tokens.json"):
        return None
    store = read_object(folder, "tokens.json", _REMEDY)
    with expected_fields(folder.locate("tokens.json"), _REMEDY):
        found = store["totals"]["documents_hash"]
        is_own = found == dataset.manifest.settings.get("documents_hash")
        if not is_own or store["settings"].get("layout") != LAYOUT:
            return None
        require_plain(store["part_names"], folder.locate("tokens.json"))
    return EncodedDocuments(folder, store)


def find_documents(
    tokens: EncodedDocuments, id_starts: Sequence[str]
) -> dict[str, list[FoundDocument]]:
    """Every copy of the documents whose ids begin so; of equal ids the first is the one used."""
    for start in id_starts:
        if not _ID_START.fullmatch(start):
            raise ValueError(
                f"{start!r} does not begin the id of a document: expected 8 to 32 hex digits in"
                " lower case, such as the 16 that `inspect` shows"
            )
    wanted = tuple(sorted(set(id_starts)))
    prefixes = sorted({int(start[:4], 16) >> (16 - PREFIX_BITS) for start in wanted})
    names = tokens.store["part_names"]
    found: list[tuple[str, FoundDocument]] = []
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        ranges = find_prefix_rows(tokens.folder, names, prefixes)
        for rows in threads.map(lambda each: _find_in_range(tokens, wanted, *each), ranges):
            found += rows
    found.sort(key=lambda each: (each[1].id, each[1].source, each[0]))
    return {
        start: [document for _, document in found if document.id.hex().startswith(start)]
        for start in wanted
    }


def describe_documents(
    dataset: Dataset, tokens: EncodedDocuments, id_starts: Sequence[str]
) -> list[str]:
    """Lines for people on each document whose id begins so; ValueError where none does."""
    lines: list[str] = []
    found = find_documents(tokens, id_starts)
    for start in id_starts:
        if not found[start]:
            raise ValueError(f"no document of {dataset.url} has an id that begins with {start}")
        before = b""
        for each in found[start]:
            place = format_place(dataset.manifest, each)
            if each.id == before:
                lines.append(f"  copy      {place}")
                continue
            before = each.id
            size = f"{each.tokens:,} tokens, {each.sentences:,} sentences"
            lines += [
                each.id.hex(),
                f"  from      {place}",
                f"  size      {size}, {each.cleaned_bytes:,} bytes",
                f"  used      {_describe_uses(dataset.manifest, tokens, each)}",
            ]
    return lines


def format_place(manifest: Manifest, document: FoundDocument) -> str:
    """SOURCE (LANGUAGE), PLACE on one line."""
    source = manifest.sources[document.source]
    return printable(f"{source['name']} ({source['language']}), {document.place}")


def _find_in_range(
    tokens: EncodedDocuments, wanted: tuple[str, ...], name: str, start: int, stop: int
) -> list[tuple[str, FoundDocument]]:
    """The wanted documents among rows of a part's index, with the part's name."""
    rows = read_rows(tokens.folder, f"{name}.index", INDEX_DTYPE, start, stop)
    ids = {number: join_id(row["high"], row["low"]) for number, row in enumerate(rows, start)}
    ids = {number: each for number, each in ids.items() if each.hex().startswith(wanted)}
    if not ids:
        return []
    path, found = tokens.folder.locate(f"{name}.places"), []
    with tokens.folder.open(f"{name}.places") as file, named_damage(path, _REMEDY):
        places = open_parquet(file)
        for number, document in ids.items():
            group = places.read_row_group(number // _ROWS_PER_GROUP, use_threads=False)
            own = group.slice(number % _ROWS_PER_GROUP, 1).to_pylist()
            if not own or own[0]["id"] != document:
                raise ValueError(f"row {number} is not document {document.hex()}")
            row = rows[number - start]
            sizes = (int(row[size]) for size in ("cleaned_bytes", "sentences", "tokens"))
            place = FoundDocument(document, own[0]["source"], own[0]["place"], *sizes)
            found.append((name, place))
    return found


def _describe_uses(manifest: Manifest, tokens: EncodedDocuments, document: FoundDocument) -> str:
    totals, settings = tokens.store["totals"], manifest.settings
    if totals["dropped"] and read_dropped_ids(tokens.folder, document.id, document.id):
        return f"never: dropped, as {' or '.join(totals['dropped'])} (docs/input.md, Filters)"
    source = manifest.sources[document.source]
    if _is_held_out(source, settings, document):
        return "for validation, once"
    weight = round(source["weight"] * UNIT)
    passes = max(group.passes for group in manifest.groups if group.split == "train")
    uses = [count_uses(weight, number, settings["seed"], document.id) for number in range(passes)]
    if len(set(uses)) == 1:
        return f"{uses[0]} time(s) in each of {passes} pass(es)"
    return f"{', '.join(map(str, uses))} times in passes 0 to {passes - 1}"


def _is_held_out(
    source: Mapping[str, Any], settings: Mapping[str, Any], document: FoundDocument
) -> bool:
    most = settings.get("validation_tokens", VALIDATION_TOKENS)
    fraction, own_tokens = settings["validation_fraction"], source["counters"]["distinct_tokens"]
    last_id = source.get("validation", {}).get("last_id") or ""
    longest = most_document_tokens(own_tokens, fraction, most)
    return document.tokens <= longest and document.id.hex() <= last_id
