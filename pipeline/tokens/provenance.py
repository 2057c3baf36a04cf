"""Where documents come from: the third file of a token part, and finding documents in it by the start of their ids.

`NAME.places` is Parquet (zstd) with the columns id, source and place, row for row as `NAME.index`.
A document is found by one small read of the index of each part that holds its id prefix, then of
one row group of places.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.documents.source import UNIT
from pipeline.documents.sources import count_uses
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import named_damage, open_parquet
from pipeline.shards.records import Manifest
from pipeline.storage.folder import Folder
from pipeline.storage.names import require_plain
from pipeline.storage.secret_values import hide
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
_ROWS_PER_GROUP = 4096
_NUM_THREADS = 16
_REMEDY = "delete the folder of tokens"
_ID_START = re.compile("[0-9a-f]{8,32}")


@dataclass(frozen=True)
class FoundDocument:
    """A document as one place of the input holds it: FILE:LINE, FILE, or what else says where it is."""

    id: bytes
    source: int
    place: str
    cleaned_bytes: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class EncodedDocuments:
    """The encoded documents of a dataset, still there; `store` is tokens.json."""

    folder: Folder
    store: Mapping[str, Any]


def pack_places(documents: Sequence[TokenizedDocument]) -> bytes:
    """The file of places of a part, in the order of its index."""
    ordered = sorted(documents, key=lambda document: document.id)
    columns = {
        "id": [document.id for document in ordered],
        "source": [document.source for document in ordered],
        # A name that is no UTF-8 has surrogates, which Parquet cannot hold.
        "place": [hide(each.where).encode(errors="replace").decode() for each in ordered],
    }
    sink = io.BytesIO()
    table = pa.table(columns, schema=PLACES_SCHEMA)
    pq.write_table(table, sink, compression="zstd", row_group_size=_ROWS_PER_GROUP)
    return sink.getvalue()


def find_tokens(
    dataset: Dataset, url: str | None = None, options: Mapping[str, Any] | None = None
) -> EncodedDocuments | None:
    """The encoded documents of a dataset, by default below it; None where they are gone, or others have their place.

    Others are those of another input, or of an earlier version.
    """
    folder = dataset.folder / TOKENS_FOLDER if url is None else Folder(url, options)
    if not folder.exists("tokens.json"):
        return None
    store = json.loads(folder.read("tokens.json"))
    is_own = store["totals"]["documents_hash"] == dataset.manifest.settings.get("documents_hash")
    if not is_own or store["settings"].get("layout") != LAYOUT:
        return None
    require_plain(store["part_names"], folder.locate("tokens.json"))
    return EncodedDocuments(folder, store)


def find_documents(
    tokens: EncodedDocuments, id_starts: Sequence[str]
) -> dict[str, list[FoundDocument]]:
    """The documents whose ids begin so, every copy of them; of equal ids the first is the one that is used.

    Raises:
        ValueError: An id's beginning is not 8 to 32 hex digits.
    """
    for start in id_starts:
        if not _ID_START.fullmatch(start):
            raise ValueError(
                f"{start!r} does not begin the id of a document: expected 8 to 32 hex digits in lower case, such as the"
                " 16 that `inspect` shows"
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
    """Lines for people on each document whose id begins so: source, place, size, how often the passes use it.

    Raises:
        ValueError: No id begins so.
    """
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
            lines += [
                each.id.hex(),
                f"  from      {place}",
                f"  size      {each.tokens:,} tokens, {each.sentences:,} sentences, {each.cleaned_bytes:,} bytes",
                f"  used      {_describe_uses(dataset.manifest, tokens, each)}",
            ]
    return lines


def format_place(manifest: Manifest, document: FoundDocument) -> str:
    """SOURCE (LANGUAGE), PLACE on one line, with what would move a terminal's cursor as an escape."""
    source = manifest.sources[document.source]
    return printable(f"{source['name']} ({source['language']}), {document.place}")


def printable(text: str) -> str:
    """The text on one line, with what would move a terminal's cursor or turn its direction as an escape."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


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
    own_tokens = source["counters"]["distinct_tokens"]
    last_id = source.get("validation", {}).get("last_id") or ""
    is_short = document.tokens <= most_document_tokens(
        own_tokens, settings["validation_fraction"], most
    )
    return is_short and document.id.hex() <= last_id
