"""Reads ranges of files as lines of UTF-8. UTF-16 with a byte order mark is converted."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from pipeline.documents import kinds, records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks, read_head
from pipeline.documents.records import BadDocumentError, Line, Record

Decoder = Callable[[bytes], str]

UTF8_MARK = codecs.BOM_UTF8
UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
HEAD_BYTES = 64 * 2**10
"""Number of first bytes of a file that show its line ends, whichever range of it is read."""
_MARK_BYTES = 2  # length of a byte order mark of UTF-16
_SHORTEST_SIGN = 8  # bytes; fewer show no encoding
_ENCODING_BYTES = 1024  # first bytes that show the encoding
_HIGHEST_PLANE = 0x10  # the highest number of a plane of Unicode
_MOST_BYTES_PER_ZERO = 64  # in UTF-16 text whose only zero bytes are in spaces and line ends
# The characters that str.strip removes, in UTF-8.
_BLANK = re.compile(
    rb"(?:[\t-\r\x1c- ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f"
    rb"|\xe3\x80\x80)*"
)
# First bytes of the blanks that bytes.strip does not remove.
_FIRST_OF_BLANKS = frozenset(b"\x1c\x1d\x1e\x1f\xc2\xe1\xe2\xe3")


def is_blank(line: bytes) -> bool:
    """Returns whether `str.strip` would leave nothing of a line of UTF-8.

    This is the rule of Google's BERT. A line of no-break spaces (U+00A0) or ideographic spaces
    (U+3000) is blank as well, which `bytes.strip` does not know.
    """
    stripped = line.strip()
    if not stripped:
        return True
    return stripped[0] in _FIRST_OF_BLANKS and _BLANK.fullmatch(stripped) is not None


def has_old_line_ends(head: bytes) -> bool:
    r"""Returns whether lines end in "\r" alone, as on old Macs, in the first bytes of a file."""
    # The last byte may be the first half of "\r\n".
    return b"\r" in head[:-1] and b"\n" not in head


def to_new_line_ends(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    r"""Yields the blocks of a file with old line ends, with every "\r" replaced by "\n".

    Raises:
        ValueError: The file has a "\n" too, so the meaning of "\r" is unclear.
    """
    for block in blocks:
        if b"\n" in block:
            found = r"its lines end in \r at first, as on old Macs, and in \n later on"
            cure = r"make them one kind: `tr '\r' '\n' < FILE > NEW`"
            raise ValueError(f"{url}: {found}; {cure}")
        yield block.replace(b"\r", b"\n")


def to_utf8(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """Yields the bytes of a whole file as blocks, converted to UTF-8 if the file is UTF-16.

    A file begins with a byte order mark if it is UTF-16, and the mark is dropped. Any other file
    stays as it is. A lone half of a surrogate pair becomes bytes that are not UTF-8, so that
    `decode` raises an error for its line.

    Args:
        blocks: The bytes of the file from its start.
        url: The file, for messages.

    Raises:
        ValueError: The file is not text, or in an encoding that is not read.
    """
    head, stream = take_head(blocks, _ENCODING_BYTES)
    kinds.refuse_binary(url, head)
    refuse_other_encodings(head, url)
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


def take_head(blocks: Iterable[bytes], num_bytes: int) -> tuple[bytes, Iterator[bytes]]:
    """Splits blocks of bytes into the first bytes and the blocks after them.

    Args:
        blocks: The blocks.
        num_bytes: The least number of first bytes. There are fewer only if all blocks have fewer.

    Returns:
        The first bytes, and an iterator over the blocks after them.
    """
    stream = iter(blocks)
    pieces: list[bytes] = []
    size = 0
    for block in stream:
        pieces.append(block)
        size += len(block)
        if size >= num_bytes:
            break
    return b"".join(pieces), stream


def refuse_other_encodings(head: bytes, url: str) -> None:
    """Refuses UTF-32, and UTF-16 without a byte order mark, by a file's first bytes.

    Without this check such a file might be read without any error. In many scripts its bytes are
    also valid UTF-8 with zero bytes between the letters, and cleaning drops zero bytes.

    Raises:
        ValueError: The file is in one of these encodings.
    """
    encoding = _name_encoding(head[:_ENCODING_BYTES])
    if encoding:
        expected = "expected UTF-8, or UTF-16 with a byte order mark"
        raise ValueError(f"{url}: found {encoding}, {expected}; convert it by iconv")


def _name_encoding(first: bytes) -> str:
    """Names the encoding of a file by its first bytes if it is one that cannot be read.

    These encodings are UTF-32, and UTF-16 without a byte order mark. The result is words for a
    message, or an empty text if the bytes show neither.
    """
    if first.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    has_mark = first[:_MARK_BYTES] in UTF16
    if has_mark or len(first) < _SHORTEST_SIGN or b"\0" not in first or not any(first):
        return ""

    # In UTF-32 the highest byte of every character is zero, and the second is a plane's number.
    whole = first[: len(first) // 4 * 4]
    for highest, second in ((whole[0::4], whole[1::4]), (whole[3::4], whole[2::4])):
        if not any(highest) and max(second) <= _HIGHEST_PLANE:
            return "UTF-32"

    halves = (first[0:64:2], first[1:64:2])
    if any(first[:64]) and not all(any(half) for half in halves):
        return "a zero in every second byte, as UTF-16 without a byte order mark has"

    # Letters of other scripts have no zero byte in UTF-16, but spaces and line ends have one.
    is_one_sided = (0 in first[0::2]) != (0 in first[1::2])
    has_many = first.count(0) * _MOST_BYTES_PER_ZERO >= len(first)
    if is_one_sided and has_many and not kinds.looks_like_text(first.replace(b"\0", b"")):
        return "zeros at every second place alone, as UTF-16 without a byte order mark has"
    return ""


def head_to_utf8(head: bytes) -> bytes:
    """Converts the first bytes of a file to UTF-8 without a byte order mark.

    The result may end within a character, as the first bytes may.
    """
    encoding = UTF16.get(head[:_MARK_BYTES])
    if encoding:
        return head[_MARK_BYTES:].decode(encoding, "ignore").encode()
    return head.removeprefix(UTF8_MARK)


def head_to_text(head: bytes) -> str:
    r"""Decodes the first bytes of a file, to look at them before the file is read.

    Lines of the result end in "\n", and bytes that are not UTF-8 become U+FFFD.
    """
    text = head_to_utf8(head)
    if has_old_line_ends(text[:HEAD_BYTES]):
        text = text.replace(b"\r", b"\n")
    return text.decode(errors="replace")


def decode(data: bytes) -> str:
    """Decodes UTF-8.

    Raises:
        BadDocumentError: The bytes are not UTF-8. Its `line` is the line of the first wrong byte.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = f"found the byte 0x{data[error.start]:02x} ({error.reason})"
        message = f"{found}, expected UTF-8; convert the file with iconv"
        line = data.count(b"\n", 0, error.start)
        raise BadDocumentError("not_utf8", message, line) from error


def read_lines(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Line]:
    """Yields the lines of a file from the first one that starts in a range, lazily.

    The lines are UTF-8 without a byte order mark. They continue to the end of the file, because the
    last document may end after the range. The caller stops after that document.

    Raises:
        ValueError: The file is not text, is in an encoding that is not read, mixes kinds of line
            ends, or has changed since it was listed.
    """
    blocks = read_blocks(file_range, storage_options)
    if file_range.start == 0:
        return split_file(blocks, file_range.url)
    if has_old_line_ends(_read_beginning(file_range, storage_options)):
        blocks = to_new_line_ends(blocks, file_range.url)
    lines = split_lines(blocks, file_range.start - 1)
    # The line that holds the byte before the range starts before the range.
    next(lines, None)
    return lines


def _read_beginning(file_range: FileRange, storage_options: StorageOptions) -> bytes:
    r"""Reads the first HEAD_BYTES of a file, for a range anywhere in it.

    They show whether lines end in "\r" or "\n". They are read for every range, so that all ranges
    of a file use the same kind of line end.
    """
    return read_head(file_range.url, file_range.size, storage_options, HEAD_BYTES)[:HEAD_BYTES]


def split_file(blocks: Iterable[bytes], url: str) -> Iterator[Line]:
    r"""Yields the lines of a whole file as UTF-8, without a byte order mark.

    A line ends in "\n". If the first bytes of the file have "\r" but no "\n", a line ends in "\r".
    UTF-16 is converted.

    Args:
        blocks: The bytes of the file from its start.
        url: The file, for messages.
    """
    lines = split_lines(_to_text(blocks, url))
    first = next(lines, None)
    if first:
        yield first._replace(data=first.data.removeprefix(UTF8_MARK))
    yield from lines


def _to_text(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    r"""Yields the blocks of a whole file as UTF-8 with "\n" as line end."""
    head, stream = take_head(to_utf8(blocks, url), HEAD_BYTES)
    text = chain([head], stream)
    return to_new_line_ends(text, url) if has_old_line_ends(head[:HEAD_BYTES]) else text


def count_line_ends(file_range: FileRange, stop: int, storage_options: StorageOptions) -> int:
    """Counts the line ends in the first `stop` bytes of an uncompressed file, by reading them.

    Args:
        file_range: Any range of the file.
        stop: The number of bytes.
        storage_options: Options of the file's filesystem.
    """
    head = _read_beginning(file_range, storage_options)
    line_end = b"\r" if has_old_line_ends(head) else b"\n"
    before = FileRange(file_range.url, 0, stop, file_range.size, file_range.format)
    count = 0
    offset = 0
    for block in read_blocks(before, storage_options):
        count += block.count(line_end, 0, max(0, stop - offset))
        offset += len(block)
        if offset >= stop:
            break
    return count


def split_lines(blocks: Iterable[bytes], offset: int = 0) -> Iterator[Line]:
    r"""Splits blocks of bytes into lines at every "\n", and yields the lines, numbered from 1.

    A line of more than MAX_DOCUMENT_BYTES is yielded without its bytes, which are not kept in
    memory.

    Args:
        blocks: The bytes.
        offset: Offset of the first byte in the file.
    """
    number = 1
    num_pending = 0
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
        number += 1
        offset += num_pending + 1
        for data in others[:-1]:
            yield _make_line(number, offset, [data], len(data))
            number += 1
            offset += len(data) + 1
        pending = [others[-1]]
        num_pending = len(others[-1])
    if num_pending:
        yield _make_line(number, offset, pending, num_pending)


def _make_line(number: int, offset: int, pieces: list[bytes], num_bytes: int) -> Line:
    """Joins the pieces of a line, and returns the line.

    Args:
        number: Number of the line.
        offset: Offset of the line's first byte in the file.
        pieces: The bytes of the line. They are not used if the line is too long.
        num_bytes: The length of the line. If it is more than MAX_DOCUMENT_BYTES, the line is
            returned without bytes.
    """
    if num_bytes > records.MAX_DOCUMENT_BYTES:
        return Line(number, offset, b"", is_too_long=True)
    return Line(number, offset, pieces[0] if len(pieces) == 1 else b"".join(pieces))


def read_whole(blocks: Iterable[bytes], url: str, decoder: Decoder | None = None) -> Record:
    """Reads a file that is one document, and returns its record.

    If the file is longer than MAX_DOCUMENT_BYTES, the record has an error, and the rest of the file
    is not read.

    Args:
        blocks: The bytes of the file, decompressed.
        url: The file, for messages.
        decoder: Decodes bytes that name their own encoding, such as HTML. Without it the file is
            UTF-8, or UTF-16 with a byte order mark.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    for block in blocks if decoder else _to_text(blocks, url):
        num_bytes += len(block)
        if num_bytes > records.MAX_DOCUMENT_BYTES:
            return Record(1, 0, b"", records.too_long())
        pieces.append(block)
    data = b"".join(pieces)
    if decoder:
        data = decoder(data).encode("utf-8", "replace")
    return Record(1, 0, data.removeprefix(UTF8_MARK))
