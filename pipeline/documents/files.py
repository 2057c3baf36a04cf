"""Ranges of plain and zstd-compressed files as blocks of bytes and as lines. May import: stdlib, zstandard, storage."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import zstandard

from pipeline.shards.storage import open_filesystem, read_range

BLOCK_BYTES = 8 * 2**20
TAIL_BLOCK_BYTES = 256 * 2**10  # beyond a range's end only the rest of one document is wanted
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

StorageOptions = Mapping[str, Any] | None


@dataclass(frozen=True)
class FileRange:
    """Bytes of one file; a document belongs to the range it starts in (see `pipeline.documents.formats`).

    Attributes:
        url: The file.
        start: First byte, as stored.
        end: One after the last byte; documents that start before it are read to their end.
        size: Of the whole file.
        format: Its layout, never "auto".
    """

    url: str
    start: int
    end: int
    size: int
    format: str

    @property
    def num_bytes(self) -> int:
        """Bytes as stored, compressed or not."""
        return self.end - self.start

    @property
    def last_offset(self) -> int:
        """Where documents of the range must start before, in the decompressed text."""
        return sys.maxsize if is_compressed(self.url) else self.end


class Line(NamedTuple):
    r"""One line without its "\n".

    Attributes:
        number: From 1 on, counted from the first line read.
        offset: Of its first byte in the decompressed file.
        data: Its bytes.
    """

    number: int
    offset: int
    data: bytes


def is_compressed(url: str) -> bool:
    """Whether a file is read through zstd: its name says so."""
    return url.endswith(".zst")


def read_blocks(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[bytes]:
    """Decompressed bytes from one before the range's start to the end of the file, lazily.

    Raises:
        ValueError: The file is not the size it was, or not whole zstd data.
        OSError: The store returned fewer bytes than it should.
    """
    filesystem, path = open_filesystem(file_range.url, storage_options)
    size = filesystem.size(path)
    if size != file_range.size:
        raise ValueError(
            f"{file_range.url}: found {size} bytes, expected {file_range.size}: the file changed since the input was "
            "listed; run again when nothing writes to it"
        )
    blocks = _read_stored(filesystem, path, file_range)
    return _decompress(blocks, file_range.url) if is_compressed(file_range.url) else blocks


def read_head(url: str, size: int, storage_options: StorageOptions = None) -> bytes:
    """The first bytes of a file, decompressed: some 256 KiB, or as many as its compressed start gives."""
    head = FileRange(url, 0, min(size, TAIL_BLOCK_BYTES), size, format="")
    return next(filter(None, read_blocks(head, storage_options)), b"")


def read_lines(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Line]:
    """Lines that start at or after the range's start, to the end of the file; a byte order mark is taken off."""
    lines = split_lines(read_blocks(file_range, storage_options), max(0, file_range.start - 1))
    first = next(lines, None)
    # The line that holds the byte before the range starts before the range.
    if first and file_range.start == 0:
        yield first._replace(data=first.data.removeprefix(_BYTE_ORDER_MARK))
    yield from lines


def count_line_ends(file_range: FileRange, stop: int, storage_options: StorageOptions = None) -> int:
    """Lines of a plain file that end before the byte `stop`; reads all of it, for messages."""
    before = FileRange(file_range.url, 0, stop, file_range.size, file_range.format)
    count, offset = 0, 0
    for block in read_blocks(before, storage_options):
        count += block.count(b"\n", 0, max(0, stop - offset))
        offset += len(block)
        if offset >= stop:
            break
    return count


def read_text_bytes(file_range: FileRange, storage_options: StorageOptions = None) -> bytes:
    """A whole file."""
    return b"".join(read_blocks(file_range, storage_options)).removeprefix(_BYTE_ORDER_MARK)


def split_lines(blocks: Iterable[bytes], offset: int = 0) -> Iterator[Line]:
    """Lines of consecutive blocks, in time linear in their length; `offset` is that of the first byte."""
    number = 1
    pending: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        pending.append(first)
        if not others:
            continue
        for data in (b"".join(pending), *others[:-1]):
            yield Line(number, offset, data)
            number, offset = number + 1, offset + len(data) + 1
        pending = [others[-1]]
    last = b"".join(pending)
    if last:
        yield Line(number, offset, last)


def _read_stored(filesystem: Any, path: str, file_range: FileRange) -> Iterator[bytes]:
    """Ranged reads with a length check: some stores cut a body short without an error."""
    start = max(0, file_range.start - 1)
    while start < file_range.size:
        stop = min(start + BLOCK_BYTES, file_range.end) if start < file_range.end else start + TAIL_BLOCK_BYTES
        stop = min(stop, file_range.size)
        yield read_range(filesystem, path, start, stop)
        start = stop


def _decompress(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """Content of all frames of a zstd file."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    is_inside = False
    try:
        for block in blocks:
            rest = block
            while rest:
                yield frame.decompress(rest)
                is_inside, rest = not frame.eof, frame.unused_data
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise ValueError(f"{url}: not zstd data, which its name promises ({error}); fetch or write it again") from error
    if is_inside:
        raise ValueError(f"{url}: the zstd data ends in the middle of a frame; fetch or write the file again")
