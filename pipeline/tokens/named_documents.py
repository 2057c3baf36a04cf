"""Finds the ids of the documents that a person means.

A person may give the first digits of an id, the place that a document was read from, or the whole
text of a document.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow.compute as pc

from pipeline.documents import Document
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import DOCUMENT_IDS, document_id_bytes, named_damage, open_parquet
from pipeline.text.cleaning import document_id
from pipeline.tokens.document_lists import DocumentList, clean_documents, split_documents
from pipeline.tokens.provenance import EncodedDocuments

_ID_START = re.compile("[0-9a-f]{16,32}")
_NUM_THREADS = 16
_REMEDY = "delete the folder of tokens"


@dataclass(frozen=True)
class DocumentPlace:
    """Where a document is from, as a person writes it: SOURCE:PLACE.

    Attributes:
        source: The name of the source.
        place: The place in the input, such as FILE:LINE, as `inspect` shows it.
    """

    source: str
    place: str


def parse_name(name: str) -> str | DocumentPlace:
    """Parses the name of a document, as a person writes it in a command.

    Returns:
        The name itself if it is the beginning of an id: 16 to 32 hex digits in lower case.
        Otherwise the source and the place that SOURCE:PLACE names.

    Raises:
        ValueError: The name has neither form.
    """
    if _ID_START.fullmatch(name):
        return name
    source, colon, place = name.partition(":")
    if not (source and colon and place):
        raise ValueError(
            f"{name!r} names no document: expected the first 16 to 32 hex digits of its id in lower"
            " case, or SOURCE:PLACE, as `python -m pipeline inspect` shows them"
        )
    return DocumentPlace(source, place)


def find_ids(dataset: Dataset, id_start: str) -> list[str] | None:
    """Returns the ids of a dataset's documents that begin with the digits `id_start`.

    documents.ids is searched by bisection, so only a few small ranges of it are read. Documents
    that are held out for validation are found as well.

    Args:
        dataset: The dataset.
        id_start: At most 32 hex digits.

    Returns:
        Whole ids of 32 hex digits, ascending; None if the dataset has no documents.ids.
    """
    if not dataset.folder.exists(DOCUMENT_IDS):
        return None
    row_bytes = document_id_bytes(dataset.manifest)
    num_rows = dataset.folder.size(DOCUMENT_IDS) // row_bytes

    def read(row: int) -> str:
        start = row * row_bytes
        return dataset.folder.read_range(DOCUMENT_IDS, start, start + row_bytes)[:16].hex()

    first = 0
    end = num_rows
    while first < end:
        middle = (first + end) // 2
        if read(middle) < id_start:
            first = middle + 1
        else:
            end = middle
    ids = []
    while first < num_rows and (document := read(first)).startswith(id_start):
        ids.append(document)
        first += 1
    return ids


def find_at_place(dataset: Dataset, tokens: EncodedDocuments, place: DocumentPlace) -> list[str]:
    """Returns the ids of the documents that a dataset's build read at a place of its input.

    The places of all documents are read, which takes some seconds for ten million documents. A
    document that was cut because of its length has several ids.

    Args:
        dataset: The dataset.
        tokens: The encoded documents of the dataset.
        place: The source and the place. The place may lack its first folders, so "b.txt:3" finds
            "news/b.txt:3".

    Returns:
        The ids in hex, ascending. The list is empty if the dataset has no source of this name, or
        no document from this place.

    Raises:
        FileNotFoundError: A part's file of places is missing.
        ValueError: A part's file of places is damaged.
    """
    names = [str(source["name"]) for source in dataset.manifest.sources]
    if place.source not in names:
        return []
    parts: Sequence[str] = tokens.store["part_names"]
    look = partial(_ids_in_part, tokens, names.index(place.source), place.place)
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        return sorted({document for found in threads.map(look, parts) for document in found})


def _ids_in_part(tokens: EncodedDocuments, source: int, place: str, part: str) -> list[str]:
    """Returns the ids of the documents of a part that are from a place of the input.

    Args:
        tokens: The encoded documents.
        source: The number of the source.
        place: The place, which may lack its first folders.
        part: The name of the part.

    Raises:
        FileNotFoundError: The file of places is missing.
        ValueError: The file of places is damaged.
    """
    where = tokens.folder.locate(f"{part}.places")
    with tokens.folder.open(f"{part}.places") as file, named_damage(where, _REMEDY):
        table = open_parquet(file).read(use_threads=False)
    matches = pc.or_(
        pc.equal(table["place"], place), pc.ends_with(table["place"], pattern=f"/{place}")
    )
    is_there = pc.and_(pc.equal(table["source"], source), matches)
    return [value.hex() for value in table["id"].filter(is_there).to_pylist()]


def ids_of_text(dataset: Dataset, text: str, where: str) -> set[str]:
    """Returns the ids that a document with this text has in a dataset.

    There is one id, unless the text has more than 8 MiB. A longer document is cut between sentences
    into several documents. Where sentences end depends on the language of the source, so the ids
    for every language of the dataset are returned.

    Args:
        dataset: The dataset.
        text: The whole text of the document; white space is cleaned as in a build.
        where: Where the text is from, for messages.

    Raises:
        ValueError: The text is empty.
    """
    keeps_words = dataset.manifest.settings.get("words", "bert") != "bert"
    documents = DocumentList("", 0, True, [Document(text, where)])
    cleaned = clean_documents(documents, keeps_words=keeps_words)
    if not cleaned.documents:
        raise ValueError(f"{where} holds no text")
    languages = {str(source["language"]) for source in dataset.manifest.sources} or {"en"}
    ids = set(_ids_of_sections(cleaned, sorted(languages), keeps_words=keeps_words))
    return ids or {document_id(cleaned.documents[0].text.encode()).hex()}


def _ids_of_sections(
    cleaned: DocumentList[Document], languages: Sequence[str], *, keeps_words: bool
) -> Iterator[str]:
    """Yields the ids that a document has if it is split by the rules of some languages.

    Args:
        cleaned: A list with the cleaned document.
        languages: Codes of the languages, whose ids follow each other. A document that is not cut
            has the same id for all of them.
        keeps_words: Whether words stay as they are (`WordRule.keeps_words`).
    """
    for language in languages:
        split = split_documents(cleaned, [language], keeps_words=keeps_words)
        yield from (document.id.hex() for document in split.documents)
