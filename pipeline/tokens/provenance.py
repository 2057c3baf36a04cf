"""Finds where documents come from by their ids, and lists documents that hold text of task files.

Each token part NAME has a Parquet file `NAME.places`. It has a row for each document with the place
in the input that the document was read from, such as FILE:LINE. The rows are in the order of
`NAME.index`. To find a document by its id, only the parts with ids of the same prefix are read: of
each, a few rows of the index and then one row group of `NAME.places`.

Task files are the test sets that the user names by --task_files (docs/input.md). `NAME.overlaps`
has one line of JSON for each document of the part that holds text of task files.
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
from pipeline.tokens.token_parts import (
    ID_BYTES,
    INDEX_DTYPE,
    LAYOUT,
    TokenizedDocument,
    join_id,
    unpack_documents,
)
from tokenizer.vocab import Vocabulary

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
    """A document, or a copy of one, at one place of the input.

    Attributes:
        id: The document's id, 16 bytes.
        source: The number of its source.
        place: Its place in the input, such as FILE:LINE.
        cleaned_bytes: Bytes of its cleaned text.
        sentences: Number of its sentences.
        tokens: Number of its tokens.
        part: Name of its token part.
        offset: The offset of its record in the part's `.tokens` file, in bytes.
        size: The length of this record in bytes.
    """

    id: bytes
    source: int
    place: str
    cleaned_bytes: int
    sentences: int
    tokens: int
    part: str
    offset: int
    size: int


@dataclass(frozen=True)
class EncodedDocuments:
    """The encoded documents of a dataset.

    Attributes:
        folder: The folder of token parts.
        store: The content of tokens.json.
    """

    folder: Folder
    store: Mapping[str, Any]


def pack_places(documents: Sequence[TokenizedDocument]) -> bytes:
    """Returns the content of a part's file `NAME.places`, which says where its documents are from.

    It is Parquet of the schema `PLACES_SCHEMA`, with one row for each document, in the order of the
    part's index.

    Args:
        documents: The documents of the part, in any order.
    """
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
    """Returns a place of the input in a form that may be written into files.

    Secrets in a URL are hidden. Bytes of a file name that are not UTF-8 become question marks.
    """
    return hide(place).encode(errors="replace").decode()


def pack_overlaps(overlaps: Sequence[tuple[str, str, Overlap]]) -> bytes:
    """Returns the content of a part's file `NAME.overlaps`, one line of JSON for each document.

    A line is a list of four texts: the document's id, the place of the document, the place of the
    shared text in a task file, and the shared words.

    Args:
        overlaps: For each document its id in hex, its place, and its overlap with a task file.
    """
    rows = (
        (document_id, writable(where), writable(overlap.place), overlap.words)
        for document_id, where, overlap in overlaps
    )
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def write_overlaps(
    tokens: Folder, part_names: Sequence[str], output: Folder, expected: int
) -> None:
    """Writes the overlaps of all parts into one table, part by part.

    Args:
        tokens: The folder of token parts. A part without overlaps has no file of overlaps.
        part_names: Names of the parts.
        output: The folder that the table is written into.
        expected: The number of documents with an overlap, as tokens.json counts them. The table has
            one row for each of them.

    Raises:
        ValueError: The number of rows is not `expected`, or a file is damaged.
    """
    sizes = tokens.list()
    number = 0
    num_files = 0
    all_names = [f"{part}{OVERLAPS}" for part in sorted(part_names)]
    names = [name for name in all_names if name in sizes]
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
    """Parses a part's file `NAME.overlaps` (`pack_overlaps`).

    Raises:
        ValueError: The file is damaged.
    """
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
    """Finds the encoded documents that a dataset was made from.

    Args:
        dataset: The dataset.
        url: The folder of token parts; None for the folder tokens/ of the dataset.
        options: Options of the URL's filesystem.

    Returns:
        The encoded documents; None if there are none, or they are not those of this dataset.

    Raises:
        ValueError: tokens.json is damaged.
    """
    folder = dataset.folder / TOKENS_FOLDER if url is None else Folder(url, options)
    if not folder.exists("tokens.json"):
        return None
    store = read_object(folder, "tokens.json", _REMEDY)
    with expected_fields(folder.locate("tokens.json"), _REMEDY):
        documents_hash = store["totals"]["documents_hash"]
        is_of_dataset = documents_hash == dataset.manifest.settings.get("documents_hash")
        if not is_of_dataset or store["settings"].get("layout") != LAYOUT:
            return None
        require_plain(store["part_names"], folder.locate("tokens.json"))
    return EncodedDocuments(folder, store)


def find_documents(
    tokens: EncodedDocuments, id_starts: Sequence[str]
) -> dict[str, list[FoundDocument]]:
    """Finds all copies of the documents whose ids begin with an entry of `id_starts`.

    Args:
        tokens: The encoded documents.
        id_starts: Beginnings of ids: 8 to 32 hex digits each.

    Returns:
        For each entry of `id_starts` a list of documents and of their copies, sorted by id. If
        several have the same id, the build uses the first of them.

    Raises:
        ValueError: A beginning is not 8 to 32 hex digits, or a file is missing or damaged.
    """
    for start in id_starts:
        if not _ID_START.fullmatch(start):
            raise ValueError(
                f"{start!r} does not begin the id of a document: expected 8 to 32 hex digits in"
                " lower case, such as the 16 that `inspect` shows"
            )
    starts = tuple(sorted(set(id_starts)))
    prefixes = sorted({int(start[:4], 16) >> (16 - PREFIX_BITS) for start in starts})
    names = tokens.store["part_names"]

    def find_in(row_range: tuple[str, int, int]) -> list[tuple[str, FoundDocument]]:
        return _find_in_range(tokens, starts, *row_range)

    copies: list[tuple[str, FoundDocument]] = []  # with the names of their parts
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        for part_copies in threads.map(find_in, find_prefix_rows(tokens.folder, names, prefixes)):
            copies += part_copies
    copies.sort(key=lambda copy: (copy[1].id, copy[1].source, copy[0]))

    documents: dict[str, list[FoundDocument]] = {}
    for start in starts:
        documents[start] = [copy for _, copy in copies if copy.id.hex().startswith(start)]
    return documents


def describe_documents(
    dataset: Dataset, tokens: EncodedDocuments, id_starts: Sequence[str]
) -> list[str]:
    """Describes documents for people: where each comes from, its size, and how often it is used.

    Args:
        dataset: The dataset.
        tokens: Its encoded documents.
        id_starts: Beginnings of ids: 8 to 32 hex digits each.

    Returns:
        The lines of the description.

    Raises:
        ValueError: No document has such an id, a beginning is not 8 to 32 hex digits, or a file is
            missing or damaged.
    """
    lines: list[str] = []
    documents_by_start = find_documents(tokens, id_starts)
    for start in id_starts:
        if not documents_by_start[start]:
            raise ValueError(f"no document of {dataset.url} has an id that begins with {start}")
        previous_id = b""
        for document in documents_by_start[start]:
            place = format_place(dataset.manifest, document)
            if document.id == previous_id:
                lines.append(f"  copy      {place}")
                continue
            previous_id = document.id
            size = f"{document.tokens:,} tokens, {document.sentences:,} sentences"
            lines += [
                document.id.hex(),
                f"  from      {place}",
                f"  size      {size}, {document.cleaned_bytes:,} bytes",
                f"  used      {_describe_uses(dataset.manifest, tokens, document)}",
            ]
    return lines


def read_opening(
    tokens: EncodedDocuments, document: FoundDocument, vocabulary: Vocabulary, num_tokens: int
) -> list[str]:
    """Returns the first tokens of a document, as the pieces of the vocabulary.

    Args:
        tokens: The encoded documents.
        document: A document that was found among them.
        vocabulary: The dataset's vocabulary.
        num_tokens: The most tokens to return.

    Raises:
        ValueError: The document is damaged.
    """
    name = f"{document.part}.tokens"
    stop = document.offset + document.size
    data = tokens.folder.read_range(name, document.offset, stop)
    where = tokens.folder.locate(name)
    [read] = unpack_documents(data, vocabulary.dtype, where)
    return [vocabulary.tokens[token] for token in read.tokens[:num_tokens]]


def format_place(manifest: Manifest, document: FoundDocument) -> str:
    """Returns a document's source, language and place on one line: SOURCE (LANGUAGE), PLACE."""
    source = manifest.sources[document.source]
    return printable(f"{source['name']} ({source['language']}), {document.place}")


def _find_in_range(
    tokens: EncodedDocuments, id_starts: tuple[str, ...], name: str, start: int, stop: int
) -> list[tuple[str, FoundDocument]]:
    """Finds the documents with some ids among rows `start` to `stop` - 1 of a part's index.

    Args:
        tokens: The encoded documents.
        id_starts: Beginnings of ids in hex. Documents whose id begins with any of them are found.
        name: The name of the part.
        start: The first row.
        stop: One past the last row.

    Returns:
        For each document that was found, the name of the part and the document.

    Raises:
        ValueError: A file is damaged, or the places are not those of the index.
    """
    rows = read_rows(tokens.folder, f"{name}.index", INDEX_DTYPE, start, stop)
    ids: dict[int, bytes] = {}  # by the row of the index
    for number, row in enumerate(rows, start):
        document_id = join_id(row["high"], row["low"])
        if document_id.hex().startswith(id_starts):
            ids[number] = document_id
    if not ids:
        return []

    path = tokens.folder.locate(f"{name}.places")
    documents: list[tuple[str, FoundDocument]] = []
    with tokens.folder.open(f"{name}.places") as file, named_damage(path, _REMEDY):
        places = open_parquet(file)
        for number, document_id in ids.items():
            group = places.read_row_group(number // _ROWS_PER_GROUP, use_threads=False)
            place = group.slice(number % _ROWS_PER_GROUP, 1).to_pylist()
            if not place or place[0]["id"] != document_id:
                raise ValueError(f"row {number} is not document {document_id.hex()}")
            row = rows[number - start]
            document = FoundDocument(
                id=document_id,
                source=place[0]["source"],
                place=place[0]["place"],
                cleaned_bytes=int(row["cleaned_bytes"]),
                sentences=int(row["sentences"]),
                tokens=int(row["tokens"]),
                part=name,
                offset=int(row["offset"]),
                size=int(row["size"]),
            )
            documents.append((name, document))
    return documents


def _describe_uses(manifest: Manifest, tokens: EncodedDocuments, document: FoundDocument) -> str:
    """Says how often each pass uses a document, or why none does."""
    totals = tokens.store["totals"]
    settings = manifest.settings
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
    """Returns whether a document is held out for validation.

    Args:
        source: The document's source, as the manifest describes it.
        settings: The settings in the manifest.
        document: The document.
    """
    last_id = source.get("validation", {}).get("last_id") or ""
    longest = most_document_tokens(
        source["counters"]["distinct_tokens"],
        settings["validation_fraction"],
        settings.get("validation_tokens", VALIDATION_TOKENS),
    )
    return document.tokens <= longest and document.id.hex() <= last_id
