"""Ranges of files as lines of UTF-8, also of UTF-16 where a byte order mark says so."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.records import BadDocumentError, Line, Record

UTF8_MARK = codecs.BOM_UTF8
UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
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
    if head[:_MARK_BYTES] not in UTF16:
        yield head
        yield from stream
        return
    decoder = codecs.getincrementaldecoder(UTF16[head[:_MARK_BYTES]])("surrogatepass")
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
    if encoding := UTF16.get(head[:_MARK_BYTES]):
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


def read_lines(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Line]:
    """Lines from the first that starts in the range to the file's end, no byte order mark first."""
    blocks = read_blocks(file_range, storage_options)
    if file_range.start == 0:
        return split_file(blocks, file_range.url)
    lines = split_lines(blocks, file_range.start - 1)
    # The line that holds the byte before the range starts before the range.
    next(lines, None)
    return lines


def split_file(blocks: Iterable[bytes], url: str) -> Iterator[Line]:
    """Lines of a file from its start, UTF-16 as UTF-8, without a byte order mark."""
    lines = split_lines(to_utf8(blocks, url))
    first = next(lines, None)
    if first:
        yield first._replace(data=first.data.removeprefix(UTF8_MARK))
    yield from lines


def count_line_ends(file_range: FileRange, stop: int, storage_options: StorageOptions) -> int:
    """Lines of a plain file that end before the byte `stop`; reads all of it, for messages."""
    before = FileRange(file_range.url, 0, stop, file_range.size, file_range.format)
    count, offset = 0, 0
    for block in read_blocks(before, storage_options):
        count += block.count(b"\n", 0, max(0, stop - offset))
        offset += len(block)
        if offset >= stop:
            break
    return count


def split_lines(blocks: Iterable[bytes], offset: int = 0) -> Iterator[Line]:
    """Lines of blocks from `offset` on; those over the limit keep no bytes."""
    number, num_pending = 1, 0
    pending: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        num_pending += len(first)
        if num_pending <= records.MAX_DOCUMENT_BYTES:
            pending.append(first)
        else:
            pending.clear()
        if not others:
            continue
        yield _make_line(number, offset, pending, num_pending)
        number, offset = number + 1, offset + num_pending + 1
        for data in others[:-1]:
            yield _make_line(number, offset, [data], len(data))
            number, offset = number + 1, offset + len(data) + 1
        pending, num_pending = [others[-1]], len(others[-1])
    if num_pending:
        yield _make_line(number, offset, pending, num_pending)


def _make_line(number: int, offset: int, pieces: list[bytes], num_bytes: int) -> Line:
    if num_bytes > records.MAX_DOCUMENT_BYTES:
        return Line(number, offset, b"", is_too_long=True)
    return Line(number, offset, pieces[0] if len(pieces) == 1 else b"".join(pieces))


def read_whole(blocks: Iterable[bytes], url: str) -> Record:
    """A file that is one document; not read on where it is too long for one."""
    pieces: list[bytes] = []
    num_bytes = 0
    for block in to_utf8(blocks, url):
        num_bytes += len(block)
        if num_bytes > records.MAX_DOCUMENT_BYTES:
            return Record(1, 0, b"", records.too_long())
        pieces.append(block)
    return Record(1, 0, b"".join(pieces).removeprefix(UTF8_MARK))
