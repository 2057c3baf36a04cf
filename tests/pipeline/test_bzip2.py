"""The compiled decompressor of bzip2: what Python's gives, cut in any way, and an error where Python's has one."""

import bz2
import contextlib
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.documents import compression
from tests.compiled_paths import taken_path

WORDS = [b"the", b"of", b"and", "é".encode(), b"\n", b"&lt;ref name=", b"[[", b"]]", b"aaaa", b"0"]
KINDS = {
    "words": lambda rng, size: b" ".join(rng.choices(WORDS, k=size))[:size],
    "any bytes": lambda rng, size: rng.randbytes(size),
    "two bytes": lambda rng, size: bytes(rng.choices(b"ab", k=size)),
    "runs": lambda rng, size: b"".join(
        bytes([rng.randrange(3)]) * rng.randrange(600) for _ in range(size // 300)
    ),
    "one byte": lambda _, size: b"x" * size,
    "a period": lambda _, size: (b"abcabcd" * size)[:size],
    "rare bytes": lambda rng, size: bytes(min(255, int(rng.expovariate(0.1))) for _ in range(size)),
}


@pytest.fixture(autouse=True)
def _compiled():
    with taken_path("compiled", "pipeline.documents._bzip2", compression, "compiled"):
        yield


def read(data, size=4096, max_length=2**20):
    decoder = compression.make_decoder(".bz2")
    found = []
    for start in range(0, len(data), size):
        found.append(decoder.decompress(data[start : start + size], max_length))
        while not decoder.eof and not decoder.needs_input:
            found.append(decoder.decompress(b"", max_length))
            assert len(found[-1]) <= max_length
        if decoder.eof:
            return b"".join(found), decoder.unused_data + data[start + size :]
    return b"".join(found), None


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.integers(0, 20_000),
    level=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    piece=st.sampled_from([1, 7, 100, 4096]),
    max_length=st.sampled_from([1, 5, 1000, 2**20]),
)
@example(kind="words", size=0, level=9, seed=0, piece=1, max_length=1)
def test_any_text_comes_back_in_pieces_of_any_size(kind, size, level, seed, piece, max_length):
    text = KINDS[kind](random.Random(seed), size)
    packed = bz2.compress(text, level)
    assert read(packed + b"BZh?", piece, max_length) == (text, b"BZh?")
    assert read(packed[:-1], piece, max_length) == (text, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [1, 9])
def test_texts_of_several_blocks(kind, level):
    text = KINDS[kind](random.Random(7), 230_000 if level == 1 else 1_900_000)
    assert read(bz2.compress(text, level)) == (text, b"")


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["words", "runs", "rare bytes"]),
    seed=st.integers(0, 10**6),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_damage_is_an_error_or_ends_too_soon(kind, seed, changes):
    text = KINDS[kind](random.Random(seed), 2000)
    packed = bytearray(bz2.compress(text))
    for place, change in changes:
        packed[int(place * (len(packed) - 1))] ^= change
    with contextlib.suppress(OSError):
        found, rest = read(bytes(packed))
        assert rest is None or found == bz2.BZ2Decompressor().decompress(bytes(packed))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((0, b"BZX"), "no header of bzip2"),
        ((3, b"0"), "no header of bzip2"),
        ((4, b"2"), "neither a block nor an end"),
        ((10, b"wxyz"), "a block of another checksum"),
        ((14, b"\x80"), "a block that bzip2 0.9.0 or an older one wrote"),
        ((15, b"\xff\xff"), "a text that begins nowhere"),
        ((-6, b"wxyz"), "neither a block nor an end|a checksum of other blocks"),
    ],
)
def test_what_is_broken_is_said(change, message):
    packed = bytearray(bz2.compress(b"One text, and another one. " * 20))
    at, new = change
    packed[at : at + len(new)] = new
    with pytest.raises(OSError, match=message):
        read(bytes(packed))


# A stream as far as its first block's codes: bytes 0 and 1 are used, two codes, a group of 50
# symbols by the first.
HEAD = [
    ("425a6839314159265359", 80),
    ("0", 32),
    ("0", 25),
    ("8000", 16),
    ("c000", 16),
    ("2", 3),
    ("1", 15),
    ("0", 1),
]


def pack(fields, symbols):
    bits = "".join(f"{int(value, 16):0{size}b}" for value, size in fields) + symbols
    bits = bits[: len(bits) // 8 * 8]
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def test_the_head_of_a_block_has_an_end():
    up_and_down = pack([*HEAD, ("5", 5)], "1011" * 20_000)
    with pytest.raises(OSError, match="a code's length that goes up and down"):
        read(up_and_down)


def test_a_broken_stream_stays_broken():
    codes_of_two_bits = [("2", 5), ("0", 4)] * 2
    decoder = compression.make_decoder(".bz2")
    for data in [pack([*HEAD, *codes_of_two_bits], "10" * 400), b"more"]:
        with pytest.raises(OSError, match="a block without an end"):
            decoder.decompress(data, 10)


def test_a_bomb_gives_no_more_than_was_asked_for():
    decoder = compression.make_decoder(".bz2")
    packed = bz2.compress(b"\0" * 50_000_000)
    assert len(packed) < 100
    assert decoder.decompress(packed, 1000) == b"\0" * 1000
    assert not decoder.needs_input


def test_nothing_is_read_behind_the_end():
    decoder = compression.make_decoder(".bz2")
    decoder.decompress(bz2.compress(b"x"), 10)
    assert decoder.eof
    with pytest.raises(EOFError, match="the stream has ended"):
        decoder.decompress(b"more", 10)
    with pytest.raises(ValueError, match="max_length=0: expected at least 1"):
        compression.make_decoder(".bz2").decompress(b"", 0)
