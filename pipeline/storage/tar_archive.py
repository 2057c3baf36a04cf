"""Reads tar archives as a stream; every member is a file of its own.

A tar has no list of its members, so one reader reads it once from start to end, compressed or not.
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
# What tarfile raises where lengths, offsets or names lie.
_TAR_ERRORS = (
    tarfile.TarError, EOFError, RuntimeError, struct.error, OverflowError, OSError, ValueError,
    LookupError, MemoryError, TypeError,
)  # fmt: skip


class TarMember(NamedTuple):
    """One file of an archive. Its bytes can be read until the next member is asked for."""

    archive: tarfile.TarFile
    info: tarfile.TarInfo
    url: str
    stream: "_Stream"

    @property
    def name(self) -> str:
        r"""Returns the member's name within the archive; bytes that are not UTF-8 become \xNN."""
        name = self.info.name.removeprefix("./")
        return name.encode(errors="surrogateescape").decode(errors="backslashreplace")

    @property
    def where(self) -> str:
        """Returns ARCHIVE/NAME, for messages."""
        return f"{self.url}/{self.name}"

    def blocks(self) -> Iterator[bytes]:
        """Yields the member's bytes; a member named *.gz, *.zst, ... is decompressed as well."""
        stored = self._stored()
        return decompress(stored, self.where) if is_compressed(self.where) else stored

    def _stored(self) -> Iterator[bytes]:
        with _broken_tar(self.stream, self.where):
            file = self.archive.extractfile(self.info)
            assert file is not None, f"{self.where} is no regular file"
            while block := file.read(_BLOCK_BYTES):
                yield block


def iterate_members(blocks: Iterable[bytes], url: str) -> Iterator[TarMember]:
    """Yields the regular files of an archive in their order, without hidden files and links.

    The file that a link points to is a member itself.

    Args:
        blocks: The bytes of the archive, decompressed.
        url: The archive, for messages.

    Raises:
        ValueError: The archive is damaged or cut short, a name leads out of its folder, or there
            are more bytes after its end.
    """
    stream = _Stream(blocks)
    with _broken_tar(stream, url):
        file: Any = stream  # tarfile asks for no more than `read`
        archive: Any = tarfile.open(fileobj=file, mode="r|")  # noqa: SIM115
    while True:
        with _broken_tar(stream, url):
            info = archive.next()
        if info is None:
            break
        archive.members.clear()  # tarfile would keep all of them
        if info.isreg():
            member = TarMember(archive, info, url, stream)
            _check_member(member)
            if not PurePosixPath(member.name).name.startswith("."):
                yield member
    _check_end(stream, archive.offset, url)


@contextmanager
def _broken_tar(stream: "_Stream", where: str) -> Iterator[None]:
    """Adds the archive or member to errors of tarfile; errors from reading the stream pass."""
    try:
        yield
    except _TAR_ERRORS as error:
        if stream.failure is not None:
            raise
        found = f"cannot be read as tar ({error})"
        raise ValueError(f"{where}: {found}; fetch or pack the archive again") from error


class _Stream:
    """A file object over blocks of bytes, for tarfile."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = b""
        self.num_bytes = 0
        """How many bytes were read."""
        self.last = b""
        """The bytes that the last call returned."""
        self.failure: BaseException | None = None
        """The error that came of the blocks, and not of what tarfile made of them."""

    def read(self, size: int) -> bytes:
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
        try:
            return next(filter(None, self._blocks), b"")
        except BaseException as error:
            self.failure = error
            raise


def _check_member(member: TarMember) -> None:
    name = member.info.name
    if not stays_below(name) or ":" in name.partition("/")[0]:
        expected = "expected names below the archive's own folder; pack it again"
        raise ValueError(f"{member.url}: found the member {name!r}, {expected}")
    if member.info.issparse():
        found = "the member is stored with holes (sparse)"
        raise ValueError(f"{member.where}: {found}; pack the archive again without --sparse")


def _check_end(stream: _Stream, end: int, url: str) -> None:
    """Refuses an archive that does not end in blocks of zeros, or has other bytes after them.

    tarfile stops without an error at a damaged header, and between archives that were joined by
    cat.
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
    """Returns whether the first bytes are a tar header."""
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except _TAR_ERRORS:
        return False
    return True
