"""The bzip2 streams that start in a range of a file, so that many are read in parallel.

A stream's header and the mark of its first block are 80 fixed bits on a byte boundary, which
compressed data holds by chance once in 10^24 bytes.
"""

import re
from collections.abc import Iterable, Iterator

from pipeline.documents.compression import check_ratio, feed, make_decoder, slices
from pipeline.documents.files import FileRange

_START = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_START_BYTES = 10


def read_streams(blocks: Iterable[bytes], file_range: FileRange) -> Iterator[tuple[bytes, bool]]:
    """Text from the first stream of a range to the file's end, and whether its stream starts in the range.

    Args:
        blocks: The file from the range's first byte on.
        file_range: The range.

    Raises:
        ValueError: Not bzip2, broken, cut short, or a bomb.
    """
    start, end, url = file_range.start, file_range.end, file_range.url
    decoder = None if start else make_decoder(".bz2")
    is_ours, is_inside = True, False
    position, head = start, b""
    num_stored = num_bytes = 0
    for piece in slices(blocks):
        position += len(piece)
        rest = head + piece
        if decoder is None:
            found = _START.search(rest)
            head = rest[1 - _START_BYTES :]
            if position - len(head) >= end and not found:
                return
            if not found:
                continue
            rest, decoder = rest[found.start() :], make_decoder(".bz2")
            is_ours = position - len(rest) < end
        head = b""
        num_stored += len(rest)
        if file_range.meter:
            file_range.meter.num_bytes += len(rest)
        while rest:
            for text in feed(decoder, rest, url):
                num_bytes += len(text)
                check_ratio(num_bytes, num_stored, url)
                yield text, is_ours
            is_inside, rest = not decoder.eof, decoder.unused_data.lstrip(b"\0")
            if decoder.eof:
                decoder, is_ours = make_decoder(".bz2"), position - len(rest) < end
                yield b"", is_ours  # before the next is decompressed: what is ours may be complete
    if is_inside:
        raise ValueError(
            f"{url}: the bzip2 data ends in the middle of a stream; fetch or write the file again"
        )
