"""Bytes of text in UTF-8, or in UTF-16 where a byte order mark says so."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from pipeline.documents.records import BadDocumentError

UTF8_MARK = codecs.BOM_UTF8
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_MARK_BYTES = 2
_SHORTEST_SIGN = 8  # bytes
_HEAD_BYTES = 16
_PACKED = {
    b"\x1f\x8b\x08": ("gzip", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst"),
    b"BZh91AY&SY": ("bzip2", ".bz2"),
    b"\xfd7zXZ\0": ("xz", ".xz"),
    b"PK\x03\x04": ("zip", ".zip"),
}


def refuse_packed(url: str, head: bytes) -> None:
    """Raises ValueError where a file of another name begins as compressed data does."""
    for magic, (codec, suffix) in _PACKED.items():
        if head.startswith(magic):
            found = f"holds {codec} data, which its name does not say"
            raise ValueError(f"{url}: {found}; rename it to end in {suffix}")


def is_utf16(head: bytes) -> bool:
    """Whether the first bytes of a file mark it as UTF-16."""
    return head[:_MARK_BYTES] in _UTF16


def to_utf8(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """A whole file's blocks, UTF-16 as UTF-8 without its mark; anything else as it is.

    Halves of surrogate pairs become bytes that are no UTF-8, so that `decode` names their line.
    """
    stream = iter(blocks)
    head = b""
    for block in stream:
        head += block
        if len(head) >= _HEAD_BYTES:
            break
    refuse_packed(url, head)
    _refuse_others(head, url)
    if not is_utf16(head):
        yield head
        yield from stream
        return
    decoder = codecs.getincrementaldecoder(_UTF16[head[:_MARK_BYTES]])("surrogatepass")
    for block in chain([head[_MARK_BYTES:]], stream):
        yield decoder.decode(block).encode("utf-8", "surrogatepass")
    if decoder.getstate()[0]:
        found = "the UTF-16 text ends in the middle of a character"
        raise ValueError(f"{url}: {found}; fetch or write the file again")


def _refuse_others(head: bytes, url: str) -> None:
    """In Latin letters they are also UTF-8 with many zero bytes, which cleaning would drop."""
    first = head[:64]
    is_utf32 = first.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    has_gaps = len(first) >= _SHORTEST_SIGN and not (any(first[::2]) and any(first[1::2]))
    if is_utf32 or has_gaps:
        gaps = "a zero in every second byte, as UTF-16 without a byte order mark has"
        found = "UTF-32" if is_utf32 else gaps
        expected = "expected UTF-8, or UTF-16 with a byte order mark"
        raise ValueError(f"{url}: found {found}, {expected}; convert it by iconv")


def head_to_utf8(head: bytes) -> bytes:
    """The first bytes of a file as UTF-8 without a mark."""
    if encoding := _UTF16.get(head[:_MARK_BYTES]):
        return head[_MARK_BYTES:].decode(encoding, "ignore").encode()
    return head.removeprefix(UTF8_MARK)


def decode(data: bytes) -> str:
    """UTF-8, or an error that knows the line."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = f"found the byte 0x{data[error.start]:02x} ({error.reason})"
        message = f"{found}, expected UTF-8; convert the file with iconv"
        line = data.count(b"\n", 0, error.start)
        raise BadDocumentError("not_utf8", message, line) from error
