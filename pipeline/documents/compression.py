"""Compressed files as streams: zstd, gzip, bzip2 and xz, of any number of frames, with a limit against bombs."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import zstandard

from tokenizer.compiled import load

compiled: Any = load("pipeline.documents._bzip2")
"""The compiled module, or None where Python's bz2 is to be used: the same text, in twice the time."""

# English text shrinks to a third or a tenth, tables and logs to a hundredth; bombs start at a
# thousandth.
MAX_RATIO = 250
FREE_BYTES = 64 * 2**20
# What one slice can become bounds memory: 128 MiB for the worst zstd, 4 MiB for the worst gzip,
# some 10 KiB of text.
_SLICE_BYTES = 4096
_MAX_TEXT_BYTES = 2**20  # given at once by decoders that take a limit: bzip2 and xz

_CODECS: dict[str, tuple[str, Callable[[], Any]]] = {
    ".zst": ("zstd", lambda: zstandard.ZstdDecompressor().decompressobj()),
    ".gz": ("gzip", lambda: zlib.decompressobj(wbits=31)),
    ".bz2": ("bzip2", lambda: compiled.Decompressor() if compiled else bz2.BZ2Decompressor()),
    ".xz": ("xz", lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=256 * 2**20)),
}
SUFFIXES = tuple(_CODECS)


def compression_suffix(url: str) -> str:
    """The suffix of a file that is read through a decompressor, or nothing: its name decides."""
    return next((suffix for suffix in SUFFIXES if url.endswith(suffix)), "")


def is_compressed(url: str) -> bool:
    """Whether a file is read through a decompressor."""
    return bool(compression_suffix(url))


def plain_name(url: str) -> str:
    """A file's name without the suffix of its compression."""
    return url.removesuffix(compression_suffix(url))


def decompress(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """Content of all frames, lazily.

    Raises:
        ValueError: Not what the name promises, cut short, or a bomb.
    """
    suffix = compression_suffix(url)
    decoder, is_inside = make_decoder(suffix), False
    num_stored = num_bytes = 0
    for piece in slices(blocks):
        num_stored += len(piece)
        # Some writers fill the last block of the file with zeros.
        rest = piece if is_inside else piece.lstrip(b"\0")
        while rest:
            for text in feed(decoder, rest, url):
                num_bytes += len(text)
                check_ratio(num_bytes, num_stored, url)
                yield text
            is_inside, rest = not decoder.eof, decoder.unused_data
            if decoder.eof:
                decoder, rest = make_decoder(suffix), rest.lstrip(b"\0")
    if is_inside:
        codec = _CODECS[suffix][0]
        raise ValueError(
            f"{url}: the {codec} data ends in the middle of a frame; fetch or write the file again"
        )


def make_decoder(suffix: str) -> Any:
    """A decoder of one frame, which knows its end: `eof` and `unused_data` are those of Python's decompressors."""
    return _CODECS[suffix][1]()


def feed(decoder: Any, data: bytes, url: str) -> Iterator[bytes]:
    """What a decoder gives for a piece of a file, lazily.

    Raises:
        ValueError: It is not what the file's name promises.
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
        raise ValueError(
            f"{url}: not {codec} data, which its name promises, or broken ({error}); fetch or write it again"
        ) from error


def check_ratio(num_bytes: int, num_stored: int, where: str) -> None:
    """Refuses text of more than 64 MiB that is over 250 times as long as its compressed form.

    Raises:
        ValueError: It is.
    """
    if num_bytes > FREE_BYTES and num_bytes > MAX_RATIO * num_stored:
        raise ValueError(
            f"{where}: {num_stored} stored bytes became over {num_bytes} bytes, expected at most {MAX_RATIO} times as "
            "many: a decompression bomb, or no text; take the file out of the input or decompress it first"
        )


def slices(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks in pieces small enough to be fed to a decompressor at once."""
    for block in blocks:
        for start in range(0, len(block), _SLICE_BYTES):
            yield block[start : start + _SLICE_BYTES]
