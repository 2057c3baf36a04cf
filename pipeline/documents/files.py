"""Ranges of files as blocks of bytes, decompressed."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.storage.compression import decompress, is_compressed, slices
from pipeline.storage.folder import Folder

BLOCK_BYTES = 8 * 2**20
TAIL_BLOCK_BYTES = 256 * 2**10  # beyond a range's end only the rest of one document is wanted

StorageOptions = Mapping[str, Any] | None


@dataclass
class Meter:
    """Stored bytes of ranges as a reader takes them, for somebody who stops in the middle."""

    num_bytes: int = 0


@dataclass(frozen=True)
class FileRange:
    """Bytes of one file as stored; documents that start before `end` are read to their end.

    Which range a document belongs to is told by `pipeline.documents.formats`.
    """

    url: str
    start: int
    end: int
    size: int
    """Of the whole file."""
    format: str
    """Only "auto" where the members of an archive are to be looked at."""
    wrapping: str = "auto"
    meter: Meter | None = field(default=None, compare=False, repr=False)

    @property
    def num_bytes(self) -> int:
        """Bytes as stored, compressed or not."""
        return self.end - self.start

    @property
    def last_offset(self) -> int:
        """Where documents of the range must start before, in the decompressed text."""
        return sys.maxsize if is_compressed(self.url) or self.end >= self.size else self.end

    def count(self, num_bytes: int) -> None:
        """Tells the meter, if there is one, that so many stored bytes are taken."""
        if self.meter:
            self.meter.num_bytes += num_bytes

    def counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks; each counts when it is taken."""
        for block in blocks:
            self.count(len(block))
            yield block


def read_blocks(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[bytes]:
    """Decompressed bytes from one before the range's start to the end of the file, lazily."""
    blocks = read_stored(file_range, storage_options)
    if not is_compressed(file_range.url):
        return file_range.counted(blocks)
    return decompress(file_range.counted(slices(blocks)), file_range.url)


def read_stored(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[bytes]:
    """As `read_blocks`, but bytes as stored, and not counted."""
    folder, name = open_sized(file_range, storage_options)
    return _read_ranges(folder, name, file_range)


def open_sized(file_range: FileRange, storage_options: StorageOptions = None) -> tuple[Folder, str]:
    """The folder and name of a range's file; raises ValueError where it is not the size it was."""
    folder, name = Folder.of_file(file_range.url, storage_options)
    if (size := folder.size(name)) != file_range.size:
        found = (
            f"found {size} bytes, expected {file_range.size}: the file changed since it was listed"
        )
        raise ValueError(f"{file_range.url}: {found}; run again when nothing writes to it")
    return folder, name


def read_head(
    url: str, size: int, storage_options: StorageOptions = None, num_bytes: int = TAIL_BLOCK_BYTES
) -> bytes:
    """The first bytes of a file, decompressed: `num_bytes` or some more, where it has so many."""
    folder, name = Folder.of_file(url, storage_options)
    blocks = _read_ranges(folder, name, FileRange(url, 0, min(size, num_bytes), size, format=""))
    head = b""
    for block in decompress(blocks, url) if is_compressed(url) else blocks:
        head += block
        if len(head) >= num_bytes:
            break
    return head


def _read_ranges(folder: Folder, name: str, file_range: FileRange) -> Iterator[bytes]:
    start = max(0, file_range.start - 1)
    while start < file_range.size:
        is_inside = start < file_range.end
        stop = min(start + BLOCK_BYTES, file_range.end) if is_inside else start + TAIL_BLOCK_BYTES
        stop = min(stop, file_range.size)
        yield folder.read_range(name, start, stop)
        start = stop
