"""Zip archives of texts: every member is a file of its own. Stdlib and pipeline.documents.

A member belongs to the range of the archive its header starts in. Names that begin with a dot are
passed over, as in folders; only the line layouts are read from archives.
"""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pipeline.documents.compression import check_ratio, decompress, is_compressed
from pipeline.documents.files import FileRange, StorageOptions, open_sized
from pipeline.storage.names import stays_below

_BLOCK_BYTES = 256 * 2**10
# What zipfile raises where lengths, offsets, names or methods lie.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, struct.error, OverflowError, OSError,
    ValueError, LookupError, MemoryError,
)  # fmt: skip
SUFFIX = ".zip"


@dataclass(frozen=True)
class Member:
    """One file of an archive that is open for reading."""

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo
    url: str

    @property
    def where(self) -> str:
        """ARCHIVE/NAME, for messages."""
        return f"{self.url}/{self.info.filename}"

    def blocks(self) -> Iterator[bytes]:
        """Its bytes, decompressed also where its own name promises that.

        Raises:
            ValueError: Broken, encrypted, or a bomb.
        """
        stored = self._inflated()
        return decompress(stored, self.where) if is_compressed(self.where) else stored

    def _inflated(self) -> Iterator[bytes]:
        num_bytes = 0
        with _broken_zip(self.where), self.archive.open(self.info) as file:
            while block := file.read(_BLOCK_BYTES):
                num_bytes += len(block)
                check_ratio(num_bytes, self.info.compress_size, self.where)
                yield block


def read_members(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Member]:
    """The members that belong to a range, in the order of their bytes.

    Raises:
        ValueError: Not a zip archive; a name that leaves the archive's folder; members that share
            their bytes.
    """
    folder, name = open_sized(file_range, storage_options)
    with folder.open(name) as file:
        with _broken_zip(file_range.url):
            archive = zipfile.ZipFile(file)
            members = [info for info in archive.infolist() if not info.is_dir()]
        for info in members:
            _check_name(info.filename, file_range.url)
        if sum(info.compress_size for info in members) > file_range.size:
            raise ValueError(
                f"{file_range.url}: the members share their bytes: a decompression bomb; leave it out"
            )
        for info in sorted(members, key=lambda info: info.header_offset):
            is_hidden = PurePosixPath(info.filename).name.startswith(".")
            if file_range.start <= info.header_offset < file_range.end and not is_hidden:
                yield Member(archive, info, file_range.url)


def _check_name(name: str, url: str) -> None:
    if not stays_below(name) or ":" in name.partition("/")[0]:
        raise ValueError(
            f"{url}: found the member {name!r}, expected names below the archive's own folder; pack it again"
        )


@contextmanager
def _broken_zip(where: str) -> Iterator[Any]:
    try:
        yield
    except _ZIP_ERRORS as error:
        if str(error).startswith(where):  # our own, which says more
            raise
        raise ValueError(
            f"{where}: cannot be read as zip ({error}); fetch or pack the archive again"
        ) from error
