"""Packs and unpacks token parts, the files that the tokens job writes and the shards job reads.

A token part holds the encoded documents of one list (`DocumentList`), sorted by id. A bucket is a
range of ids, so the documents of a bucket follow each other in every part. A part has these files:

- `NAME.tokens`: the documents, each as a record with a header and a checksum.
- `NAME.index`: one small row for each document (INDEX_DTYPE).
- `NAME.places`: where each document comes from (`pipeline.tokens.provenance`).
- `NAME.overlaps`: the documents that hold text of task files, if there are any (same module).
- `NAME.signatures`: the signatures by which near-duplicates are found, if they are looked for
  (`pipeline.tokens.near_duplicates`).
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.tokens.grouped_rows import Rows, pack_rows

LAYOUT = 4
"""Version of the layout of these files. It is kept in tokens.json; other versions are refused."""

ID_BYTES = 16
_REMEDY = "delete the folder of token parts"
_CHECKSUM = struct.Struct("<I")  # crc32 of all that follows it in the document's record
_HEADER = struct.Struct("<16sB3x3I")  # id, source, cleaned bytes, sentences, tokens
LENGTH_DTYPE = np.dtype("<u2")
INDEX_DTYPE = np.dtype(
    [
        ("high", "<u8"),  # first 64 bits of the id, read big-endian, so that rows sort as ids do
        ("low", "<u8"),
        ("offset", "<u8"),
        ("size", "<u4"),
        ("cleaned_bytes", "<u4"),
        ("sentences", "<u4"),
        ("tokens", "<u4"),
        ("source", "u1"),
        ("crc32", "<u4"),  # with which its record in the tokens begins
    ]
)
"""A row of `NAME.index`: a document's id, its place in the tokens, its sizes and its source."""


@dataclass(frozen=True)
class TokenizedDocument:
    """A document as ids of tokens.

    Attributes:
        id: 16 bytes, blake2b-128 of the cleaned text.
        cleaned_bytes: Bytes of the cleaned text in UTF-8.
        sentence_lengths: [S] the number of tokens of each sentence, at least 1. The dtype is uint32
            after encoding, and uint16 in a document that was read from a token part.
        tokens: [T] uint16 or uint32, the ids of all sentences end to end.
        source: The number of the document's source.
        where: The place in the input that the document is from; empty if it was read from a token
            part.
        signature: The signature by which near-duplicates are found; empty if they are not looked
            for.
        crc32: The checksum of the document's record in a token part; 0 if it was not read from one.
    """

    id: bytes
    cleaned_bytes: int
    sentence_lengths: npt.NDArray[np.unsignedinteger]
    tokens: npt.NDArray[np.unsignedinteger]
    source: int = 0
    where: str = ""
    signature: bytes = b""
    crc32: int = 0


def pack_documents(documents: Sequence[TokenizedDocument]) -> tuple[bytes, bytes]:
    """Returns the content of a part's `.tokens` file, and that of its `.index` file.

    Args:
        documents: The documents of the part, in any order. Copies are kept.
    """
    rows: list[tuple[int, ...]] = []
    chunks: list[bytes] = []
    position = 0
    for document in sorted(documents, key=lambda document: document.id):
        record = _pack_document(document)
        high, low = split_id(document.id)
        (crc32,) = _CHECKSUM.unpack_from(record)
        row = (
            high,
            low,
            position,
            len(record),
            document.cleaned_bytes,
            len(document.sentence_lengths),
            len(document.tokens),
            document.source,
            crc32,
        )
        rows.append(row)
        chunks.append(record)
        position += len(record)
    index = np.array(rows, INDEX_DTYPE)
    return b"".join(chunks), pack_rows(index, index["high"] >> np.uint64(56))


def unpack_documents(
    data: bytes | memoryview, token_dtype: Any, where: str
) -> Iterable[TokenizedDocument]:
    """Yields the documents in a range of a `.tokens` file.

    Args:
        data: Bytes of the file: the whole records of one or more documents.
        token_dtype: The dtype of token ids: uint16 or uint32.
        where: The URL of the file, for messages.

    Raises:
        ValueError: A document is damaged or cut.
    """
    view = memoryview(data)
    dtype = np.dtype(token_dtype)
    position = 0
    while position < len(view):
        start = position + _CHECKSUM.size
        position = start + _HEADER.size
        if position > len(view):
            raise ValueError(f"{where}: ends inside the header of a document; {_REMEDY}")
        header = _HEADER.unpack_from(view, start)
        document_id, source, cleaned_bytes, num_sentences, num_tokens = header
        tokens_start = position + num_sentences * LENGTH_DTYPE.itemsize
        end = tokens_start + num_tokens * dtype.itemsize
        (crc,) = _CHECKSUM.unpack_from(view, start - _CHECKSUM.size)
        if end > len(view) or zlib.crc32(view[start:end]) != crc:
            raise ValueError(f"{where}: document {document_id.hex()} is damaged; {_REMEDY}")
        lengths = np.frombuffer(data, LENGTH_DTYPE, num_sentences, position)
        tokens = np.frombuffer(data, dtype, num_tokens, tokens_start)
        yield TokenizedDocument(document_id, cleaned_bytes, lengths, tokens, source, crc32=crc)
        position = end


def split_id(document_id: bytes) -> tuple[int, int]:
    """Returns an id as two integers of 64 bits, which sort like the bytes of the id."""
    return int.from_bytes(document_id[:8], "big"), int.from_bytes(document_id[8:], "big")


def join_id(high: int, low: int) -> bytes:
    """Returns the id that `split_id` split."""
    return int(high).to_bytes(8, "big") + int(low).to_bytes(8, "big")


def id_keys(rows: Rows) -> npt.NDArray[np.bytes_]:
    """Returns the ids of rows as fixed strings of 16 bytes, which sort like the ids: [D]."""
    pairs = np.stack([rows["high"], rows["low"]], axis=1).astype(">u8")
    keys: npt.NDArray[np.bytes_] = pairs.view(f"S{ID_BYTES}").reshape(len(rows))
    return keys


def _pack_document(document: TokenizedDocument) -> bytes:
    """Returns the record of a document in a `.tokens` file.

    It consists of a checksum of the rest, the header, the lengths of the sentences, and the tokens.
    """
    lengths = np.ascontiguousarray(document.sentence_lengths, LENGTH_DTYPE)
    num_tokens = len(document.tokens)
    assert int(lengths.sum(dtype=np.int64)) == num_tokens, "sentences do not add up to the tokens"
    header = _HEADER.pack(
        document.id, document.source, document.cleaned_bytes, len(lengths), num_tokens
    )
    record = header + lengths.tobytes() + np.ascontiguousarray(document.tokens).tobytes()
    return _CHECKSUM.pack(zlib.crc32(record)) + record
