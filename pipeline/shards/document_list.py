"""Reads lists of documents that are to be left out, and looks their ids up in datasets.

A dataset stores only the first 64 bits of the ids of an instance's two documents (docs/format.md,
section 2), so a list of documents has no more of them. The order of a list matters. Documents are
added at the end of a training run's list. A saved state of the run's stream tells which of them it
had already left out: it has their number, n, and a hash of the first n documents.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.shards.block import Array
from pipeline.shards.dataset import Dataset
from pipeline.shards.document_ids import first_64_bits, iterate_id_rows
from pipeline.shards.document_index import open_document_index
from pipeline.shards.manifest import DOCUMENT_IDS
from pipeline.storage.folder import Folder

_ID = re.compile(r"[0-9a-f]{16,32}")
_DIGITS = 16
_JSON_KEYS = ("id", "document")


def read_document_list(
    name: str, storage_options: Mapping[str, Any] | None = None
) -> tuple[int, ...]:
    """Returns the documents that a file lists, in the order of its lines, each once.

    A line begins with the id of a document, or with the first 16 or more hex digits of the id.
    Anything may follow after white space. A line may also be a JSON object that has the id under
    the key `id` or `document`. Empty lines, and lines that begin with #, are ignored.

    Args:
        name: The file, on a local disk or at any URL that fsspec knows.
        storage_options: Options of the URL's filesystem.

    Returns:
        The first 64 bits of the id of each document.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line does not begin with an id, or the file lists no document.
    """
    folder, file = Folder.of_file(name, storage_options)
    if not folder.exists(file):
        raise FileNotFoundError(f"{name}: there is no such file; give a list of document ids")
    return parse_document_list(folder.read(file), name)


def parse_document_list(data: bytes, where: str) -> tuple[int, ...]:
    """Returns the documents of a list; `read_document_list` describes it.

    Only line feeds and carriage returns end a line. Titles and file names behind an id may have
    other characters that `str.splitlines` takes for the end of a line.

    Args:
        data: The content of the file, which may begin with the mark of UTF-8 (BOM).
        where: The file, for messages.

    Raises:
        ValueError: A line does not begin with an id, or the file lists no document.
    """
    documents: dict[int, None] = {}
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).splitlines(), 1):
        text = line.decode(errors="replace").strip()
        if text and not text.startswith("#"):
            documents[_parse_line(text, f"{where}:{number}")] = None
    if not documents:
        raise ValueError(f"{where} lists no document; expected the hex digits of an id per line")
    return tuple(documents)


def _parse_line(line: str, where: str) -> int:
    """Returns the first 64 bits of the id in a line that is not empty.

    Raises:
        ValueError: The line does not begin with an id.
    """
    words = line.split(None, 1)
    found = words[0]
    if line.startswith("{"):
        try:
            fields = json.loads(line)
            found = next(str(fields[key]) for key in _JSON_KEYS if key in fields)
        except (ValueError, StopIteration, RecursionError) as error:
            raise ValueError(
                f"{where}: found {line[:60]!r}, expected a JSON object with a document's id under"
                f" {' or '.join(_JSON_KEYS)}"
            ) from error
    if not _ID.fullmatch(found):
        raise ValueError(
            f"{where}: found {found[:60]!r}, expected a document's id, or the first 16 or more of"
            " its 32 hex digits in lower case"
        )
    return int(found[:_DIGITS], 16)


def format_document_list(documents: Iterable[int]) -> bytes:
    """Returns the content of a file that lists documents by the first 64 bits of their ids."""
    return "".join(f"{document:0{_DIGITS}x}\n" for document in documents).encode()


def hash_documents(documents: Iterable[int]) -> str:
    """Returns a hash of a list of documents: blake2b-64, in hex, of `format_document_list`'s bytes.

    Args:
        documents: The first 64 bits of the id of each document, in the order of the list.
    """
    return hashlib.blake2b(format_document_list(documents), digest_size=8).hexdigest()


def find_unknown(
    datasets: Sequence[Dataset], documents: Sequence[int], cache_dir: str | None = None
) -> list[int]:
    """Returns those of some documents that are in none of the datasets, ascending.

    If a dataset has a documents.ids, all documents listed there are in it, also validation
    documents and documents that no pass uses. Otherwise only those documents are in it of which it
    has an instance.

    Args:
        datasets: The datasets, which are finished.
        documents: The first 64 bits of the documents' ids.
        cache_dir: As in `open_document_index`; used for datasets without documents.ids.

    Raises:
        StorageError: A store failed in every attempt.
        ValueError: A dataset is damaged.
    """
    unknown = np.unique(np.array(documents, np.uint64))
    for dataset in datasets:
        unknown = np.setdiff1d(unknown, _held_of(dataset, unknown, cache_dir))
    return [int(document) for document in unknown]


def refuse_unknown(
    datasets: Sequence[Dataset],
    documents: Sequence[int],
    where: str,
    cache_dir: str | None = None,
) -> None:
    """Raises a ValueError if a list names a document that no dataset holds.

    Args:
        datasets: The datasets, which are finished.
        documents: The first 64 bits of ids.
        where: The list, for the message.
        cache_dir: As in `find_unknown`.
    """
    unknown = find_unknown(datasets, documents, cache_dir)
    if unknown:
        named = ", ".join(f"{document:0{_DIGITS}x}" for document in unknown[:3])
        more = f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
        urls = ", ".join(dataset.url for dataset in datasets)
        raise ValueError(
            f"{where} lists {named}{more}, which no dataset holds ({urls}); `python -m pipeline"
            " inspect` shows ids of documents: correct the list"
        )


def _held_of(dataset: Dataset, documents: Array, cache_dir: str | None) -> Array:
    """Returns the listed documents that a dataset holds, ascending, uint64.

    Args:
        dataset: The dataset.
        documents: The first 64 bits of the ids of the listed documents, ascending, uint64.
        cache_dir: As in `open_document_index`; used if the dataset has no documents.ids.
    """
    if not dataset.folder.exists(DOCUMENT_IDS):
        splits = {group.split for group in dataset.manifest.groups}
        indexes = [open_document_index(dataset, split, cache_dir) for split in sorted(splits)]
        found = [index.find(documents).document for index in indexes]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))
    return find_listed(dataset, documents)


def find_listed(dataset: Dataset, documents: Array) -> Array:
    """Returns the documents of a list that documents.ids of a dataset has, ascending, uint64.

    Args:
        dataset: A dataset that has a documents.ids.
        documents: The first 64 bits of the ids of the documents, ascending, uint64.

    Raises:
        StorageError: The store failed in every attempt.
        ValueError: documents.ids ends inside a row.
    """
    chunks = (first_64_bits(rows) for rows in iterate_id_rows(dataset))
    listed = [documents[np.isin(documents, ids)] for ids in chunks]
    return np.concatenate([np.empty(0, np.uint64), *listed])
