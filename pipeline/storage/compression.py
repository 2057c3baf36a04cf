"""Decompresses files as streams: zstd, gzip, bzip2, xz and lzma, with any number of frames.

A decompression bomb is refused.
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
FREE_BYTES = 64 * 2**20
_SLICE_BYTES = 4096  # bounds memory: one becomes 10 KiB of text, 128 MiB of the worst zstd
_MAX_TEXT_BYTES = 2**20  # given at once by decoders that take a limit: bzip2 and xz

# `zstd --long=31` writes windows of 2 GiB, the most there is; each is as much memory of its reader.
_MAX_ZSTD_WINDOW_BYTES = 2**31
_MAX_LZMA_BYTES = 256 * 2**20


def _zstd_decoder() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW_BYTES).decompressobj()


_CODECS: dict[str, tuple[str, Callable[[], Any]]] = {
    ".zst": ("zstd", _zstd_decoder),
    ".gz": ("gzip", lambda: zlib.decompressobj(wbits=31)),
    ".bz2": ("bzip2", bz2.BZ2Decompressor),
    ".xz": ("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _MAX_LZMA_BYTES)),
    ".lzma": ("lzma", lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, _MAX_LZMA_BYTES)),
}
SUFFIXES = tuple(_CODECS)
_TAR_SUFFIXES = {
    ".tgz": ".gz", ".tbz": ".bz2", ".tbz2": ".bz2", ".txz": ".xz", ".tlz": ".lzma", ".tzst": ".zst",
}  # fmt: skip
# A stream's header and the mark of its first block are 80 fixed bits on a byte boundary, which
# compressed data holds by chance once in 10^24 bytes.
_BZIP2_STREAM = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_BZIP2_STREAM_BYTES = 10


def compression_suffix(url: str) -> str:
    """Returns the suffix of the codec that a file's name says: ".gz" for A.GZ and for a.tgz.

    The result is empty for a file without compression.
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
    """Returns whether a file is compressed by its name."""
    return bool(compression_suffix(url))


def plain_name(url: str) -> str:
    """Returns a file's name without the suffix of its compression, and without a URL's query.

    The plain name of a.tgz is a.tar.
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
    """Content of all frames, lazily; raises as `read_frames`."""
    return (text for text, _ in read_frames(blocks, url))


def read_frames(blocks: Iterable[bytes], url: str) -> Iterator[tuple[bytes, int]]:
    """Content of all frames in pieces, each with the byte of the blocks at which its frame begins.

    An empty piece comes first in each frame, before anything of it is decompressed. Raises
    ValueError where the data is not what the name promises, cut short, or a bomb.
    """
    codec, make_decoder = _CODECS[compression_suffix(url)]
    decoder: Any = None
    num_stored = num_bytes = begin = 0
    for piece in slices(blocks):
        num_stored += len(piece)
        rest = piece
        while rest:
            if decoder is None:
                rest = rest.lstrip(b"\0")  # Some writers fill blocks of the file with zeros.
                if not rest:
                    break
                decoder, begin = make_decoder(), num_stored - len(rest)
                yield b"", begin
            for text in feed(decoder, rest, url):
                num_bytes += len(text)
                check_ratio(num_bytes, num_stored, url)
                yield text, begin
            rest = decoder.unused_data
            decoder = None if decoder.eof else decoder
    if decoder is not None:
        found = f"the {codec} data ends in the middle of a frame"
        raise ValueError(f"{url}: {found}; fetch or write the file again")


def find_bzip2_stream(blocks: Iterable[bytes], num_bytes: int) -> tuple[int, Iterator[bytes]]:
    """How many bytes are before the first bzip2 stream in `num_bytes`; those from there on."""
    head, offset = b"", 0
    rest = iter(blocks)
    for block in rest:
        data = head + block
        if found := _BZIP2_STREAM.search(data):
            return offset + found.start(), chain([data[found.start() :]], rest)
        head = data[1 - _BZIP2_STREAM_BYTES :]
        offset += len(data) - len(head)
        if offset >= num_bytes:
            break
    return offset, iter(())


def feed(decoder: Any, data: bytes, url: str) -> Iterator[bytes]:
    """What a decoder gives for a piece of a file, lazily; a ValueError where the name lies."""
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
    """Refuses, by a ValueError, over 64 MiB of text that is over 250 times its compressed form."""
    if num_bytes > FREE_BYTES and num_bytes > MAX_RATIO * num_stored:
        raise ValueError(
            f"{where}: {num_stored} stored bytes became over {num_bytes} bytes, expected at most"
            f" {MAX_RATIO} times as many: a decompression bomb, or no text; take the file out of"
            " the input or decompress it first"
        )


def slices(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks in pieces small enough to be fed to a decompressor at once."""
    for block in blocks:
        for start in range(0, len(block), _SLICE_BYTES):
            yield block[start : start + _SLICE_BYTES]
