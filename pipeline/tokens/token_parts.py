"""Token parts: encoded documents on disk between the tokens job and the shards job, sorted by id.

A bucket is a range of ids, so it is one contiguous range of every part. Of a part, `NAME.tokens`
holds the documents, each behind a header with its own checksum, `NAME.index` one small row a
document, `NAME.places` where they come from (pipeline.tokens.provenance), and `NAME.signatures`
what near-duplicates are found by (pipeline.tokens.near_duplicates).
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
"""Version of the layout of these files, in their folder's settings: others are refused."""

ID_BYTES = 16
_REMEDY = "delete the folder of token parts"
_CHECKSUM = struct.Struct("<I")  # of all that follows it in the document's record
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
        ("crc32", "<u4"),  # that its record in the tokens begins with
    ]
)


@dataclass(frozen=True)
class TokenizedDocument:
    """One document as the shards job needs it."""

    id: bytes  # 16, blake2b-128 of the cleaned text
    cleaned_bytes: int  # of the text in UTF-8
    sentence_lengths: npt.NDArray[np.unsignedinteger]  # [S] uint16, tokens, each at least 1
    tokens: npt.NDArray[np.unsignedinteger]  # [T] uint16 or uint32, all sentences end to end
    source: int = 0
    where: str = ""  # in the input
    signature: bytes = b""  # empty where near-duplicates are not looked for
    crc32: int = 0  # of the record that it was read from


def pack_documents(documents: Sequence[TokenizedDocument]) -> tuple[bytes, bytes]:
    """The tokens and the index of a part, from documents in any order; copies are all kept."""
    rows: list[tuple[int, ...]] = []
    chunks: list[bytes] = []
    position = 0
    for document in sorted(documents, key=lambda document: document.id):
        record = _pack_document(document)
        sizes = document.cleaned_bytes, len(document.sentence_lengths), len(document.tokens)
        place = *split_id(document.id), position, len(record)
        rows.append((*place, *sizes, document.source, *_CHECKSUM.unpack_from(record)))
        chunks.append(record)
        position += len(record)
    index = np.array(rows, INDEX_DTYPE)
    return b"".join(chunks), pack_rows(index, index["high"] >> np.uint64(56))


def unpack_documents(
    data: bytes | memoryview, token_dtype: Any, where: str
) -> Iterable[TokenizedDocument]:
    """The documents of a range of a `.tokens` file; ValueError where one is damaged or cut."""
    view, position, dtype = memoryview(data), 0, np.dtype(token_dtype)
    while position < len(view):
        start = position + _CHECKSUM.size
        position = start + _HEADER.size
        if position > len(view):
            raise ValueError(f"{where}: ends inside the header of a document; {_REMEDY}")
        header = _HEADER.unpack_from(view, start)
        document_id, source, cleaned_bytes, num_sentences, num_tokens = header
        middle = position + num_sentences * LENGTH_DTYPE.itemsize
        end = middle + num_tokens * dtype.itemsize
        (crc,) = _CHECKSUM.unpack_from(view, start - _CHECKSUM.size)
        if end > len(view) or zlib.crc32(view[start:end]) != crc:
            raise ValueError(f"{where}: document {document_id.hex()} is damaged; {_REMEDY}")
        lengths = np.frombuffer(data, LENGTH_DTYPE, num_sentences, position)
        tokens = np.frombuffer(data, dtype, num_tokens, middle)
        yield TokenizedDocument(document_id, cleaned_bytes, lengths, tokens, source, crc32=crc)
        position = end


def split_id(document_id: bytes) -> tuple[int, int]:
    """An id as two 64-bit integers that sort as its bytes do."""
    return int.from_bytes(document_id[:8], "big"), int.from_bytes(document_id[8:], "big")


def join_id(high: int, low: int) -> bytes:
    """The id that `split_id` split."""
    return int(high).to_bytes(8, "big") + int(low).to_bytes(8, "big")


def id_keys(rows: Rows) -> npt.NDArray[np.bytes_]:
    """[D] ids as fixed strings of 16 bytes, which sort as ids do."""
    pairs = np.stack([rows["high"], rows["low"]], axis=1).astype(">u8")
    keys: npt.NDArray[np.bytes_] = pairs.view(f"S{ID_BYTES}").reshape(len(rows))
    return keys


def _pack_document(document: TokenizedDocument) -> bytes:
    lengths = np.ascontiguousarray(document.sentence_lengths, LENGTH_DTYPE)
    num_tokens = len(document.tokens)
    assert int(lengths.sum(dtype=np.int64)) == num_tokens, "sentences do not add up to the tokens"
    size = document.cleaned_bytes
    header = _HEADER.pack(document.id, document.source, size, len(lengths), num_tokens)
    record = header + lengths.tobytes() + np.ascontiguousarray(document.tokens).tobytes()
    return _CHECKSUM.pack(zlib.crc32(record)) + record
