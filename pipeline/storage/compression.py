"""Decompresses files as streams: zstd, gzip, bzip2, xz and lzma.

A file may be several compressed frames one after another. A file that decompresses to far more
bytes than text ever does (a decompression bomb) is refused.
"""

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

import zstandard

from pipeline.storage.secret_values import without_query

# English text shrinks to a tenth, logs to a hundredth; bombs start at a thousandth.
MAX_RATIO = 250
"""The most decompressed bytes per stored byte."""
FREE_BYTES = 64 * 2**20
"""The number of decompressed bytes up to which the ratio is not checked."""

# Bounds memory: 4 KiB of input become some 10 KiB of text, but up to 128 MiB of the worst zstd.
_SLICE_BYTES = 4096
_MAX_TEXT_BYTES = 2**20
"""The most bytes that the decoders of bzip2 and xz, which take a limit, return per call."""

# `zstd --long=31` writes windows of 2 GiB, the largest there are, and a reader needs such memory.
_MAX_ZSTD_WINDOW_BYTES = 2**31
_MAX_LZMA_BYTES = 256 * 2**20
"""The most memory that a decoder of xz or lzma may use."""


def _zstd_decoder() -> Any:
    """Returns a decoder of one zstd frame, which accepts the windows of `zstd --long=31`."""
    return zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES).decompressobj()


_CODECS: dict[str, tuple[str, Callable[[], Any]]] = {
    ".zst": ("zstd", _zstd_decoder),
    ".gz": ("gzip", lambda: zlib.decompressobj(wbits=31)),
    ".bz2": ("bzip2", bz2.BZ2Decompressor),
    ".xz": ("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MAX_LZMA_BYTES)),
    ".lzma": ("lzma", lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, _MAX_LZMA_BYTES)),
}
"""Suffix of a compressed file -> name of its codec, and a function that makes a decoder."""
SUFFIXES = tuple(_CODECS)
"""Suffixes of compressed files: .zst, .gz, .bz2, .xz and .lzma."""
_TAR_SUFFIXES = {
    ".tgz": ".gz", ".tbz": ".bz2", ".tbz2": ".bz2", ".txz": ".xz", ".tlz": ".lzma", ".tzst": ".zst",
}  # fmt: skip
"""Short suffix of a compressed tar -> suffix of its compression."""

# The header of a bzip2 stream and the mark of its first block are 80 fixed bits on a byte boundary.
# Compressed data holds them by chance once in 10^24 bytes.
_BZIP2_STREAM = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_BZIP2_STREAM_BYTES = 10


def compression_suffix(url: str) -> str:
    """Returns the suffix of the codec that a file's name promises: ".gz" for A.GZ and for a.tgz.

    The result is empty if the name promises no compression.
    """
    name = without_query(url).lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    for short, suffix in _TAR_SUFFIXES.items():
        if name.endswith(short):
            return suffix
    return ""


def is_compressed(url: str) -> bool:
    """Returns whether a file's name says that it is compressed."""
    return bool(compression_suffix(url))


def plain_name(url: str) -> str:
    """Returns a file's name without the suffix of its compression and without a URL's query.

    The plain name of a.txt.gz is a.txt, and that of a.tgz is a.tar.
    """
    name = without_query(url)
    for short in _TAR_SUFFIXES:
        if name.lower().endswith(short):
            return f"{name[: -len(short)]}.tar"
    suffix = compression_suffix(url)
    return name[: len(name) - len(suffix)]


def plain_suffix(url: str) -> str:
    """Returns the suffix of a file's plain name in lower case: ".csv" for a/B.CSV.GZ."""
    return PurePosixPath(plain_name(url)).suffix.lower()


def decompress(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """Yields the decompressed content of a file, lazily.

    Args:
        blocks: The bytes of the file, in pieces of any length.
        url: The file. The suffix of its name chooses the codec.

    Raises:
        ValueError: The data is not what the name promises, is cut short, or is a decompression
            bomb.
    """
    return (text for text, _ in read_frames(blocks, url))


def read_frames(blocks: Iterable[bytes], url: str) -> Iterator[tuple[bytes, int]]:
    """Decompresses a file lazily, and tells for each piece of the content where its frame begins.

    A compressed file consists of one or more frames (zstd's word; gzip says members, bzip2 and xz
    say streams). The first piece of each frame is empty, and is yielded before anything of the
    frame is decompressed. So a caller can stop before a frame that it does not want.

    Args:
        blocks: The bytes of the file, in pieces of any length.
        url: The file. The suffix of its name chooses the codec.

    Yields:
        A piece of the content, and the offset in the compressed bytes at which its frame begins.

    Raises:
        ValueError: The data is not what the name promises, is cut short, or is a decompression
            bomb.
    """
    codec, make_decoder = _CODECS[compression_suffix(url)]
    decoder: Any = None
    num_stored = 0
    num_bytes = 0
    begin = 0

    for piece in slices(blocks):
        num_stored += len(piece)
        unread = piece
        while unread:
            if decoder is None:
                unread = unread.lstrip(b"\0")  # Some writers fill blocks of the file with zeros.
                if not unread:
                    break
                decoder = make_decoder()
                begin = num_stored - len(unread)
                yield b"", begin
            for text in feed(decoder, unread, url):
                num_bytes += len(text)
                check_ratio(num_bytes, num_stored, url)
                yield text, begin
            unread = decoder.unused_data
            decoder = None if decoder.eof else decoder

    if decoder is not None:
        found = f"the {codec} data ends in the middle of a frame"
        raise ValueError(f"{url}: {found}; fetch or write the file again")


def find_bzip2_stream(blocks: Iterable[bytes], num_bytes: int) -> tuple[int, Iterator[bytes]]:
    """Finds the first bzip2 stream that begins in some bytes of a file.

    Args:
        blocks: Bytes of a bzip2 file from any byte on, in pieces of any length.
        num_bytes: How far to search; a block that reaches past this is still searched whole.

    Returns:
        The number of bytes before the stream, and the bytes from the start of the stream on. If no
        stream is found, the number of bytes at which certainly none begins, and no bytes.
    """
    head = b""
    offset = 0
    following = iter(blocks)
    for block in following:
        data = head + block
        if match := _BZIP2_STREAM.search(data):
            return offset + match.start(), chain([data[match.start() :]], following)
        # The last bytes may be the beginning of a stream that the next block completes.
        head = data[1 - _BZIP2_STREAM_BYTES :]
        offset += len(data) - len(head)
        if offset >= num_bytes:
            break
    return offset, iter(())


def feed(decoder: Any, data: bytes, url: str) -> Iterator[bytes]:
    """Gives the next bytes of a file to a decoder, and yields the decompressed bytes, lazily.

    Args:
        decoder: An object of zlib, zstandard, bz2 or lzma, which keeps its state between calls.
        data: The next bytes of the file.
        url: The file, for messages.

    Raises:
        ValueError: The data is broken, or is not compressed as the file's name promises.
    """
    try:
        if not hasattr(decoder, "needs_input"):
            yield bytes(decoder.decompress(data))
            return
        yield decoder.decompress(data, _MAX_TEXT_BYTES)
        while not decoder.eof and not decoder.needs_input:
            yield decoder.decompress(b"", _MAX_TEXT_BYTES)
    except (zstandard.ZstdError, zlib.error, lzma.LZMAError, OSError) as error:
        codec = _CODECS[compression_suffix(url)][0]
        found = f"not {codec} data, which its name promises, or broken ({error})"
        raise ValueError(f"{url}: {found}; fetch or write it again") from error


def check_ratio(num_bytes: int, num_stored: int, where: str) -> None:
    """Refuses content of over 64 MiB that is over 250 times as long as its compressed form.

    Args:
        num_bytes: Number of decompressed bytes so far.
        num_stored: Number of compressed bytes that they were decompressed from.
        where: The file or the member of an archive, for the message.

    Raises:
        ValueError: The content is too long, as that of a decompression bomb.
    """
    if num_bytes > FREE_BYTES and num_bytes > MAX_RATIO * num_stored:
        raise ValueError(
            f"{where}: {num_stored} stored bytes became over {num_bytes} bytes, expected at most"
            f" {MAX_RATIO} times as many: a decompression bomb, or no text; take the file out of"
            " the input or decompress it first"
        )


def slices(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the bytes of `blocks` in pieces of at most 4 KiB.

    The pieces are short so that what a decoder makes of one piece fits into memory.
    """
    for block in blocks:
        for start in range(0, len(block), _SLICE_BYTES):
            yield block[start : start + _SLICE_BYTES]
