"""Ranges of files as lines of UTF-8, in time linear in their length."""

from collections.abc import Iterable, Iterator

from pipeline.documents import records
from pipeline.documents.encoding import UTF8_MARK, to_utf8
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.records import Line, Record


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
