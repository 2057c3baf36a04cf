"""Reads tar archives as streams; every member counts as a file of the input.

A tar has no list of its members, so it is read once from start to end by a single reader.
"""

import struct
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from pipeline.storage.compression import decompress, is_compressed
from pipeline.storage.names import stays_below

_BLOCK_BYTES = 256 * 2**10
# Errors that tarfile raises for wrong lengths, offsets or names.
_TAR_ERRORS = (
    tarfile.TarError, EOFError, RuntimeError, struct.error, OverflowError, OSError, ValueError,
    LookupError, MemoryError, TypeError,
)  # fmt: skip


class TarMember(NamedTuple):
    """One file of an archive. Its bytes can be read until the next member is asked for.

    Attributes:
        archive: The open archive.
        info: The member's header.
        url: The archive, for messages.
        stream: The bytes of the archive.
    """

    archive: tarfile.TarFile
    info: tarfile.TarInfo
    url: str
    stream: "_Stream"

    @property
    def name(self) -> str:
        r"""Name of the member within the archive; bytes that are not UTF-8 are written as \xNN."""
        name = self.info.name.removeprefix("./")
        return name.encode(errors="surrogateescape").decode(errors="backslashreplace")

    @property
    def where(self) -> str:
        """The member as messages name it: ARCHIVE/NAME."""
        return f"{self.url}/{self.name}"

    def blocks(self) -> Iterator[bytes]:
        """Yields the member's bytes; a member named *.gz, *.zst, ... is decompressed as well.

        Raises:
            ValueError: The member is damaged, or a decompression bomb.
        """
        stored = self._stored()
        return decompress(stored, self.where) if is_compressed(self.where) else stored

    def _stored(self) -> Iterator[bytes]:
        """Yields the member's bytes as they are in the archive."""
        with _broken_tar(self.stream, self.where):
            file = self.archive.extractfile(self.info)
            assert file is not None, f"{self.where} is no regular file"
            while block := file.read(_BLOCK_BYTES):
                yield block


def iterate_members(blocks: Iterable[bytes], url: str) -> Iterator[TarMember]:
    """Yields the regular files of an archive in their order, lazily.

    Hidden files are left out. So are links, because the file that a link points to is a member too.

    Args:
        blocks: The bytes of the archive, decompressed.
        url: The archive, for messages.

    Raises:
        ValueError: The archive is damaged or cut short, a name leads out of its folder, a member is
            stored with holes, or there are more bytes after the archive's end.
    """
    stream = _Stream(blocks)
    with _broken_tar(stream, url):
        file: Any = stream  # tarfile calls no method of it but `read`
        archive: Any = tarfile.open(fileobj=file, mode="r|")  # noqa: SIM115
    while True:
        with _broken_tar(stream, url):
            info = archive.next()
        if info is None:
            break
        archive.members.clear()  # tarfile would keep all members in memory
        if info.isreg():
            member = TarMember(archive, info, url, stream)
            _check_member(member)
            if not PurePosixPath(member.name).name.startswith("."):
                yield member
    _check_end(stream, archive.offset, url)


@contextmanager
def _broken_tar(stream: "_Stream", where: str) -> Iterator[None]:
    """Turns errors of tarfile into a ValueError that names the archive or member `where`.

    Errors from reading the stream itself are passed on unchanged.
    """
    try:
        yield
    except _TAR_ERRORS as error:
        if stream.failure is not None:
            raise
        found = f"cannot be read as tar ({error})"
        raise ValueError(f"{where}: {found}; fetch or pack the archive again") from error


class _Stream:
    """A file object over blocks of bytes, for tarfile.

    Attributes:
        num_bytes: Number of bytes that were read so far.
        last: The bytes that the last call of `read` returned.
        failure: The error that reading `blocks` raised; None if there was none. By it, such an
            error is told from one that tarfile raises about a damaged archive.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = b""
        self.num_bytes = 0
        self.last = b""
        self.failure: BaseException | None = None

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes, fewer only at the end."""
        pieces: list[bytes] = []
        while size > 0:
            if not self._rest:
                self._rest = self._next_block()
            if not self._rest:
                break
            pieces.append(self._rest[:size])
            self._rest = self._rest[size:]
            size -= len(pieces[-1])
        self.last = b"".join(pieces)
        self.num_bytes += len(self.last)
        return self.last

    def _next_block(self) -> bytes:
        """Returns the next block that is not empty; at the end, no bytes."""
        try:
            return next(filter(None, self._blocks), b"")
        except BaseException as error:
            self.failure = error
            raise


def _check_member(member: TarMember) -> None:
    """Raises ValueError if a member's name leads out of the archive's folder, or it is sparse.

    Of a sparse member, the archive holds only the parts between holes of zeros.
    """
    name = member.info.name
    if not stays_below(name) or ":" in name.partition("/")[0]:
        expected = "expected names below the archive's own folder; pack it again"
        raise ValueError(f"{member.url}: found the member {name!r}, {expected}")
    if member.info.issparse():
        found = "the member is stored with holes (sparse)"
        raise ValueError(f"{member.where}: {found}; pack the archive again without --sparse")


def _check_end(stream: _Stream, end: int, url: str) -> None:
    """Checks that an archive ends in blocks of zeros, and that nothing but zeros follows.

    tarfile stops without an error at a damaged header, and between two archives that were
    concatenated.

    Args:
        stream: The archive, which tarfile has read up to what it took for the end.
        end: Offset of that end in the archive's bytes.
        url: The archive, for messages.

    Raises:
        ValueError: The zeros are missing, or other bytes follow them.
    """
    behind = stream.last[len(stream.last) - (stream.num_bytes - end) :]
    if not behind:
        found = "the archive ends without the blocks of zeros that end one: a part of it is missing"
        raise ValueError(f"{url}: {found}; fetch or pack it again")
    while behind:
        if any(behind):
            found = f"found bytes behind the archive's end, which is at byte {end} of its content"
            cure = "it is damaged there, or joined of several; fetch it again, or unpack it"
            raise ValueError(f"{url}: {found}: {cure}")
        behind = stream.read(_BLOCK_BYTES)


def looks_like_tar(head: bytes) -> bool:
    """Returns whether a file begins with a tar header.

    Args:
        head: The first bytes of the file, at least 512.
    """
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except _TAR_ERRORS:
        return False
    return True
