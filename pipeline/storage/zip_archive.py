"""Reads zip archives; every member counts as a file of the input.

Decompression bombs, and names that lead out of the archive's folder, are refused.
"""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from pipeline.storage.compression import check_ratio, decompress, is_compressed
from pipeline.storage.names import stays_below

_BLOCK_BYTES = 256 * 2**10
# Errors that zipfile raises for wrong lengths, offsets, names or methods of compression.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, struct.error,
    OverflowError, OSError, ValueError, LookupError, MemoryError,
)  # fmt: skip


class ZipMember(NamedTuple):
    """One file of an archive that is open for reading.

    Attributes:
        archive: The open archive.
        info: The member's entry in the archive's list.
        url: The archive, for messages.
    """

    archive: zipfile.ZipFile
    info: zipfile.ZipInfo
    url: str

    @property
    def name(self) -> str:
        """Name of the member within the archive."""
        return self.info.filename

    @property
    def where(self) -> str:
        """The member as messages name it: ARCHIVE/NAME."""
        return f"{self.url}/{self.name}"

    def blocks(self) -> Iterator[bytes]:
        """Yields the member's bytes; a member named *.gz, *.zst, ... is decompressed as well.

        Raises:
            ValueError: The member is damaged, encrypted or a decompression bomb.
        """
        stored = self._inflated()
        return decompress(stored, self.where) if is_compressed(self.where) else stored

    def _inflated(self) -> Iterator[bytes]:
        """Yields the bytes of the file that was packed as this member, lazily."""
        num_bytes = 0
        with _broken_zip(self.where), self.archive.open(self.info) as file:
            while block := file.read(_BLOCK_BYTES):
                num_bytes += len(block)
                check_ratio(num_bytes, self.info.compress_size, self.where)
                yield block


def list_members(file: IO[bytes], size: int, url: str) -> list[ZipMember]:
    """Returns the members of an archive, in the order in which their bytes follow each other.

    Folders and hidden files are left out.

    Args:
        file: The open archive, which must be seekable.
        size: Length of the archive in bytes.
        url: The archive, for messages.

    Raises:
        ValueError: The archive is damaged, a name leads out of its folder, or members share bytes.
    """
    with _broken_zip(url):
        archive = zipfile.ZipFile(file)
        members = [info for info in archive.infolist() if not info.is_dir()]

    for name in (info.filename for info in members):
        if not stays_below(name) or ":" in name.partition("/")[0]:
            expected = "expected names below the archive's own folder; pack it again"
            raise ValueError(f"{url}: found the member {name!r}, {expected}")
    if sum(info.compress_size for info in members) > size:
        found = "the members share their bytes: a decompression bomb"
        raise ValueError(f"{url}: {found}; leave it out")

    ordered = sorted(members, key=lambda info: info.header_offset)
    shown = [info for info in ordered if not PurePosixPath(info.filename).name.startswith(".")]
    return [ZipMember(archive, info, url) for info in shown]


@contextmanager
def _broken_zip(where: str) -> Iterator[Any]:
    """Turns errors of zipfile into a ValueError that names the archive or member `where`."""
    try:
        yield
    except RuntimeError as error:  # a password is needed, or the method of compression is unknown
        found = f"cannot be read as zip ({error})"
        raise ValueError(f"{where}: {found}; unpack the archive: `7z x FILE`") from error
    except _ZIP_ERRORS as error:
        if str(error).startswith(where):  # raised by this project, with a better message
            raise
        found = f"cannot be read as zip ({error})"
        raise ValueError(f"{where}: {found}; fetch or pack the archive again") from error
