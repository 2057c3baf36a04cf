"""Reads byte ranges of files as blocks of decompressed bytes."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.storage.compression import decompress, is_compressed, slices
from pipeline.storage.folder import Folder

BLOCK_BYTES = 8 * 2**20
TAIL_BLOCK_BYTES = 256 * 2**10  # after a range's end only the rest of one document is needed

StorageOptions = Mapping[str, Any] | None


@dataclass
class Meter:
    """Counts the bytes that were read so far, so that a caller can show the progress.

    A caller gives a meter to a `FileRange`. Functions that read the range add to it.

    Attributes:
        num_bytes: Number of bytes that were read so far. Compressed bytes count as stored.
    """

    num_bytes: int = 0


@dataclass(frozen=True)
class FileRange:
    """A range of the bytes of one file, as they are stored: compressed, if the file is.

    The docstring of `pipeline.documents.formats` defines which documents belong to a range. The
    last of them is read to its end, even if its end is after the end of the range.

    Attributes:
        url: URL or path of the file.
        start: Offset of the first byte of the range.
        end: Offset of the byte after the range.
        size: Size of the whole file in bytes.
        format: The name of the file's format. For an archive it may be "auto": the format of each
            member is then detected when the member is read.
        wrapping: How paragraphs of plain text end, one of `WRAPPINGS`.
        meter: Counts the bytes that are read from the range; None if nobody needs the count.
    """

    url: str
    start: int
    end: int
    size: int
    format: str
    wrapping: str = "auto"
    meter: Meter | None = field(default=None, compare=False, repr=False)

    @property
    def num_bytes(self) -> int:
        """Number of bytes in the range, as stored."""
        return self.end - self.start

    @property
    def last_offset(self) -> int:
        """Offset in the decompressed file at which the documents of the next range begin.

        Readers of lines stop at a document that starts there or later. For the last range of a file
        it is `sys.maxsize`. So it is for a compressed file, whose lines are never cut into ranges.
        """
        return sys.maxsize if is_compressed(self.url) or self.end >= self.size else self.end

    def count(self, num_bytes: int) -> None:
        """Adds bytes that were read to the meter, if there is one."""
        if self.meter:
            self.meter.num_bytes += num_bytes

    def counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the blocks unchanged, and adds the size of each to the meter."""
        for block in blocks:
            self.count(len(block))
            yield block


def read_blocks(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[bytes]:
    """Returns the decompressed bytes of a range and of the rest of the file, as lazy blocks.

    The first block begins one byte before the start of the range. If that byte is a line end, a
    line starts exactly at the start of the range. Blocks continue to the end of the file, because
    the last document may end after the range. The caller stops to read when it has that document.

    Raises:
        ValueError: The file has another size than it had when it was listed.
    """
    blocks = read_stored(file_range, storage_options)
    if not is_compressed(file_range.url):
        return file_range.counted(blocks)
    return decompress(file_range.counted(slices(blocks)), file_range.url)


def read_stored(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[bytes]:
    """Returns the same bytes as `read_blocks`, but without decompressing them, as lazy blocks.

    The bytes are not added to the meter of the range.

    Raises:
        ValueError: The file has another size than it had when it was listed.
    """
    folder, name = open_sized(file_range, storage_options)
    return _read_ranges(folder, name, file_range)


def open_sized(file_range: FileRange, storage_options: StorageOptions = None) -> tuple[Folder, str]:
    """Returns the folder and the name of a range's file, after checking the file's size.

    Raises:
        ValueError: The file has another size than it had when it was listed.
    """
    folder, name = Folder.of_file(file_range.url, storage_options)
    size = folder.size(name)
    if size != file_range.size:
        found = (
            f"found {size} bytes, expected {file_range.size}: the file changed since it was listed"
        )
        raise ValueError(f"{file_range.url}: {found}; run again when nothing writes to it")
    return folder, name


def read_head(
    url: str, size: int, storage_options: StorageOptions = None, num_bytes: int = TAIL_BLOCK_BYTES
) -> bytes:
    """Returns the first bytes of a file, decompressed.

    Args:
        url: The file.
        size: Its size in bytes, as stored.
        storage_options: Options of its filesystem.
        num_bytes: Number of decompressed bytes. The result may have some more, and it has fewer
            only if the whole file has.
    """
    folder, name = Folder.of_file(url, storage_options)
    blocks = _read_ranges(folder, name, FileRange(url, 0, min(size, num_bytes), size, format=""))
    head = b""
    for block in decompress(blocks, url) if is_compressed(url) else blocks:
        head += block
        if len(head) >= num_bytes:
            break
    return head


def _read_ranges(folder: Folder, name: str, file_range: FileRange) -> Iterator[bytes]:
    """Yields the stored bytes from one byte before a range to the end of the file, as blocks.

    Blocks have at most BLOCK_BYTES. After the range they have at most TAIL_BLOCK_BYTES, because a
    caller needs only the rest of one document there.

    Args:
        folder: The folder of the file.
        name: The file in it.
        file_range: The range, whose `size` must be that of the file.
    """
    start = max(0, file_range.start - 1)
    while start < file_range.size:
        is_inside = start < file_range.end
        stop = min(start + BLOCK_BYTES, file_range.end) if is_inside else start + TAIL_BLOCK_BYTES
        stop = min(stop, file_range.size)
        yield folder.read_range(name, start, stop)
        start = stop
