"""Gathers the documents of a PCollection into lists, each of which becomes one token part.

A runner hands documents to a worker in bundles, and a worker cannot keep documents from one bundle
to the next. So documents are first put into lists within each bundle. If bundles are small, most of
these lists are short, and as many token parts as bundles would be too many for a large corpus: at
5 TB they may be millions. So only a list of a quarter of `part_bytes` or more becomes a token part
as it is. Shorter lists are shuffled in groups, and joined:

1. The characters of all short lists of each source are counted.
2. Short lists are divided into groups by the hash of their documents. The count decides the number
   of groups, so that a group has about half of `part_bytes`.
3. The lists of a group are joined to lists of at most `part_bytes`.

So there are at most 4 token parts for each `part_bytes` of text, and 1 more for each source,
whatever the bundles are. A long list takes a quarter of `part_bytes` or more. A group gives one
list, and another one for each half of `part_bytes` in it at most, since two lists that follow each
other are larger than `part_bytes` together. Sizes are in characters of text, and 1 more for each
document.
"""

import hashlib
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.documents import Document
from pipeline.jobs import metrics
from pipeline.text.batches import batch_by_size
from pipeline.tokens.document_lists import DocumentList

HASH_BYTES = 16
"""Number of bytes of the hash of a document, and of the sum of such hashes."""
_SHORT = 4  # a list is short if it has less than this fraction of part_bytes
_PIECE_CHARACTERS = 2**20  # of a short list, since some engines fail at larger records


def to_document(document: str | Document, sources: Sequence[str], _: None = None) -> Document:
    """Converts an element of the input to a document that names its source.

    Args:
        document: A text or a document. It must name its source if there are several sources.
        sources: Names of all sources.
        _: The result of `claim_output`. It is not used, but makes the runner wait for that step.

    Raises:
        ValueError: The element is of another type, or its source is not in the settings.
    """
    if isinstance(document, str):
        document = Document(document)
    if not isinstance(document, Document):
        raise ValueError(  # noqa: TRY004 - a user's fault, which runners pass on
            f"a document is a {type(document).__name__}, expected str or"
            f" pipeline.documents.Document; found {reprlib.repr(document)}; convert it, or leave"
            " it out before"
        )
    for field in ("text", "where", "source"):
        value = getattr(document, field)
        if not isinstance(value, str):
            raise ValueError(  # noqa: TRY004
                f"a document's {field} is a {type(value).__name__}, expected str; found"
                f" {reprlib.repr(value)}, where is {document.where!r}; convert it, or leave it out"
                " before"
            )
    name = document.source or sources[0]
    if name not in sources or (not document.source and len(sources) > 1):
        raise ValueError(
            f"a document ({document.where or document.text[:40]!r}) is of the source"
            f" {document.source!r}, expected one of {', '.join(sources)}"
        )
    return replace(document, source=name)


def hash_document(document: Document) -> int:
    """Returns a hash of 128 bits of a document's text, place, source and `is_split`."""
    digest = hashlib.blake2b(str(document.is_split).encode(), digest_size=HASH_BYTES)
    for text in (document.source, document.where, document.text):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def add_hashes(hashes: Iterable[int]) -> str:
    """Returns the sum of hashes modulo 2**128 in hexadecimal. It does not depend on their order."""
    return f"{sum(hashes) % (1 << 8 * HASH_BYTES):0{2 * HASH_BYTES}x}"


def tally_document(document: Document) -> tuple[int, str]:
    """Returns the tally of one document: the number 1, and its hash."""
    return 1, add_hashes([hash_document(document)])


def add_tallies(tallies: Iterable[tuple[int, str]]) -> tuple[int, str]:
    """Adds up tallies: returns the number of all documents, and the sum of their hashes."""
    number = 0
    hashes = []
    for documents, digest in tallies:
        number += documents
        hashes.append(int(digest, 16))
    return number, add_hashes(hashes)


def size_of_document(document: Document) -> int:
    """Returns the number of a document's characters plus 1, so that an empty one has a size too."""
    return 1 + len(document.text)


def size_of_given(document: Any) -> int:
    """Returns the number of characters of what a user gave as a document; 0 if it is none."""
    text = getattr(document, "text", document)
    return len(text) if isinstance(text, str) else 0


def size_of_list(documents: DocumentList[Document]) -> int:
    """Returns the size of all documents of a list together, as `size_of_document` counts it."""
    return sum(map(size_of_document, documents.documents))


def is_long(documents: DocumentList[Document], part_bytes: int) -> bool:
    """Returns whether a list becomes a token part as it is, and is not joined to others."""
    return _SHORT * size_of_list(documents) >= part_bytes


def is_short(documents: DocumentList[Document], part_bytes: int) -> bool:
    """Returns whether a list is joined to others, the opposite of `is_long`."""
    return not is_long(documents, part_bytes)


def to_lists(
    documents: Sequence[Document], sources: Sequence[str], part_bytes: int
) -> Iterator[DocumentList[Document]]:
    """Puts the documents of a batch into lists, each with documents of one source.

    The documents of a source are one list if it is long. Otherwise they are cut into lists of about
    1 MiB, because small pieces give groups of one size when they are joined.

    Args:
        documents: Documents as `to_document` returns them.
        sources: Names of all sources, in the order of their numbers.
        part_bytes: The most text of a token part.
    """
    for whole in _divide_by_source(documents, sources):
        if is_long(whole, part_bytes):
            yield whole
        else:
            pieces = batch_by_size(whole.documents, size_of_document, _PIECE_CHARACTERS)
            yield from (_make_list(piece, whole.source) for piece in pieces)


def _divide_by_source(
    documents: Sequence[Document], sources: Sequence[str]
) -> Iterator[DocumentList[Document]]:
    """Yields one list for each source that documents are from, in the order of the sources."""
    by_source: dict[int, list[Document]] = {}
    for document in documents:
        by_source.setdefault(sources.index(document.source), []).append(document)
    for number, gathered in sorted(by_source.items()):
        yield _make_list(gathered, number)


def _make_list(documents: Sequence[Document], source: int) -> DocumentList[Document]:
    """Returns a list of documents of one source.

    It does not depend on the order of the documents, because they are sorted by their hashes. The
    sum of the hashes is the list's `part`.

    Args:
        documents: The documents.
        source: The number of their source.
    """
    rows = sorted(((hash_document(document), document) for document in documents), key=_hash_of)
    digest = add_hashes(hashed for hashed, _ in rows)
    ordered = [document for _, document in rows]
    counters = {"documents_read": len(ordered)}
    return DocumentList(digest, 0, True, ordered, counters, source=source, keeps_dropped=True)


def _hash_of(row: tuple[int, Document]) -> int:
    """Returns the hash in a row of `_make_list`."""
    return row[0]


def measure_list(documents: DocumentList[Document]) -> dict[int, int]:
    """Returns one entry: the number of a list's source, with the size that `size_of_list` counts.

    `add_sizes` adds up these dicts.
    """
    return {documents.source: size_of_list(documents)}


def add_sizes(sizes: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Adds up what `measure_list` returned: returns the size of all lists of each source."""
    total: Counter[int] = Counter()
    for by_source in sizes:
        total.update(by_source)
    return dict(total)


def num_groups(size: int, part_bytes: int) -> int:
    """Returns into how many groups short lists are divided: 2 for each `part_bytes`, at least 1.

    Args:
        size: The size of all short lists of one source.
        part_bytes: The most text of a token part.
    """
    return -(-2 * size // part_bytes) or 1


def to_group(
    documents: DocumentList[Document], sizes: Mapping[int, int], num_sources: int, part_bytes: int
) -> tuple[int, DocumentList[Document]]:
    """Returns the number of a short list's group, and the list.

    Lists of different sources are in different groups.

    Args:
        documents: The list.
        sizes: The size of all short lists of each source (`add_sizes`).
        num_sources: Number of sources.
        part_bytes: The most text of a token part.
    """
    groups = num_groups(sizes[documents.source], part_bytes)
    return int(documents.part, 16) % groups * num_sources + documents.source, documents


def join_lists(
    group: tuple[int, Iterable[DocumentList[Document]]], sources: Sequence[str], part_bytes: int
) -> Iterator[DocumentList[Document]]:
    """Joins the short lists of a group to lists of at most `part_bytes`.

    The lists are taken one after the other, and no more documents are held in memory than one
    joined list has.

    Args:
        group: The number of the group, and its lists in any order.
        sources: Names of all sources, in the order of their numbers.
        part_bytes: The most text of a token part.
    """
    gathered: list[Document] = []
    size = 0
    for documents in group[1]:
        metrics.count({"documents_joined": len(documents.documents)})
        added = size_of_list(documents)
        if gathered and size + added > part_bytes:
            yield from _divide_by_source(gathered, sources)
            gathered = []
            size = 0
        gathered += documents.documents
        size += added
    yield from _divide_by_source(gathered, sources)
