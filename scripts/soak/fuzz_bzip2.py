"""Gives the compiled decompressor damaged bzip2 streams, under gcc's sanitizers.

    python scripts/soak/fuzz_bzip2.py --seconds 600 --output scripts/soak/results/DATE.json

Texts of several kinds are compressed; then bytes and bits are changed, removed, doubled and moved,
mostly in the heads of blocks, where the codes are. What Python's bz2 reads is read to the same
bytes, unless it is REFUSED; of the rest, the decompressor gives an error, and gives it again, or
asks for more. It does the same when it is given the stream in other pieces.
"""

import bz2
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

from scripts.soak.sanitized import run_sanitized

MODULE = "pipeline.documents._bzip2"
WORDS = [
    b"the",
    b"of",
    b"and",
    b"\n",
    b"&lt;ref name=",
    b"[[",
    b"]]",
    b"aaaa",
    b"0",
    bytes(range(256)),
]
STREAMS_A_ROUND = 200
HEAD_BYTES = 60
# And read by bz2, where nothing needs what is wrong.
REFUSED = ("bzip2 0.9.0", "a code with more symbols", "goes up and down")
MAX_TEXT_BYTES = 10_000  # a call


def fuzz(modules: Mapping[str, Any], seconds: float, seed: int) -> dict[str, int]:
    """Numbers of streams, and of those that Python's bz2 reads although they were changed.

    Raises:
        AssertionError: A stream is read otherwise than Python's bz2 reads it, or than in other
            pieces.
    """
    make, rng, end = modules[MODULE].Decompressor, random.Random(seed), time.monotonic() + seconds
    counts = {"streams": 0, "read": 0}
    while time.monotonic() < end:
        packed = bz2.compress(make_text(rng), rng.randint(1, 9))
        for _ in range(STREAMS_A_ROUND):
            data = damage(rng, packed)
            found = read(make(), data, len(data) or 1)
            assert found == read(make(), data, rng.choice((1, 2, 30))), (
                f"read differently in pieces: {data!r}"
            )
            decoder = bz2.BZ2Decompressor()
            try:
                expected = decoder.decompress(data)
            except OSError:
                continue
            finally:
                counts["streams"] += 1
            if decoder.eof and not any(reason in str(found) for reason in REFUSED):
                assert found == expected, (
                    f"found {found!r:.99}, bz2 reads {expected!r:.99}: {data!r}"
                )
                counts["read"] += 1
    return counts


def read(decoder: Any, data: bytes, size: int) -> bytes | str | None:
    """The text of a stream, the error's message, or None where it ends too soon."""
    found = []
    try:
        for start in range(0, len(data), size):
            found.append(decoder.decompress(data[start : start + size], MAX_TEXT_BYTES))
            while not decoder.eof and not decoder.needs_input:
                found.append(decoder.decompress(b"", MAX_TEXT_BYTES))
            if decoder.eof:
                return b"".join(found)
    except OSError as error:
        assert is_broken(decoder, data), f"text behind an error: {data!r}"
        return str(error)
    return None


def is_broken(decoder: Any, data: bytes) -> bool:
    """Whether a decoder refuses what it is given."""
    try:
        decoder.decompress(data, MAX_TEXT_BYTES)
    except OSError:
        return True
    return False


def make_text(rng: random.Random) -> bytes:
    """Words, runs or any bytes."""
    size = rng.choice((0, 1, 20, 300, 3000))
    kind = rng.randrange(3)
    if kind == 0:
        return b" ".join(rng.choices(WORDS, k=size))
    return (
        rng.randbytes(size)
        if kind == 1
        else bytes([rng.randrange(256)]) * size * rng.choice((1, 300))
    )


def damage(rng: random.Random, packed: bytes) -> bytes:
    """A stream with up to 4 changes."""
    data = bytearray(packed)
    for _ in range(rng.randint(0, 4)):
        if not data:
            break
        at = rng.randrange(len(data) if rng.random() < 0.3 else min(len(data), HEAD_BYTES))
        kind, size = rng.randrange(4), rng.choice((1, 2, 8))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + size] = rng.randbytes(size)
        elif kind == 2:
            del data[at : at + size]
        else:
            data[at:at] = data[at : at + size]
    return bytes(data)


if __name__ == "__main__":
    sys.exit(run_sanitized(__file__, __doc__ or "", [MODULE], fuzz))
