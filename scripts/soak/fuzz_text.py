"""Gives the compiled encoder and cleaning random input, under gcc's sanitizers.

    python -m scripts.soak.fuzz_text --seconds 60 --output scripts/soak/results/DATE-fuzz-text.json

What the product may give them must come out as from the other path. What it never gives (pieces,
forms, kinds and text of arbitrary bytes) must only stay inside memory.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.text import cleaning
from scripts.soak.sanitized import run_sanitized
from tokenizer.compiled_encoder import CompiledEncoder
from tokenizer.encode import LibraryEncoder
from tokenizer.vocab import CONTINUATION, SPECIAL_TOKENS, Vocabulary
from tokenizer.word_rule import WordRule

ALPHABETS = ("ab", "abcdé中", "aé\u0301\u302e\U0001d165한", "".join(map(chr, range(1, 0x250))), "")
AWKWARD = (
    " \t\n\v\f\r\0\x7f\x85\x80\xa0\u1680\u2000"
    "\u200a\u200b\u2028\u202f\u205f\u3000\ufeff\ufffdabé力\U00010000\ud800"
)
BYTE_SETS = (b"ab", b"\x80\xff\xc3a ", b"\xe2\x80\xef\xbb\xbf\xc2 \xf0a", bytes(range(256)))


def fuzz(modules: Mapping[str, Any], seconds: float, seed: int) -> dict[str, int]:
    """Calls, by what was called; AssertionError where the two paths differ."""
    rng = random.Random(seed)
    calls = Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        texts = _draw_texts(rng)
        calls["encoders compared"] += _compare_encoders(modules["tokenizer._matcher"], rng, texts)
        calls["matchers of any bytes"] += _match_any_bytes(
            modules["tokenizer._matcher"], rng, texts
        )
        for _ in range(20):
            calls["cleanings compared"] += _compare_cleaning(modules["tokenizer._matcher"], rng)
            calls["cleanings of any bytes"] += _clean_any_bytes(modules["tokenizer._matcher"], rng)
    return dict(calls)


def _draw_text(rng: random.Random, alphabet: str, length: int) -> str:
    if alphabet:
        return "".join(rng.choices(alphabet, k=length))
    codes = (rng.randrange(0x110000) for _ in range(length))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


def _draw_texts(rng: random.Random) -> list[str]:
    texts = []
    for _ in range(rng.randint(1, 12)):
        alphabet = rng.choice(ALPHABETS)
        if alphabet:
            alphabet += rng.choice(("", " ", " .,\n\0\1"))
        texts.append(_draw_text(rng, alphabet, rng.choice((0, 1, 7, 60, 500))))
    return texts


def _draw_bytes(rng: random.Random, least: int, most: int) -> bytes:
    return bytes(rng.choices(rng.choice(BYTE_SETS), k=rng.randint(least, most)))


def _compare_encoders(module: Any, rng: random.Random, texts: list[str]) -> int:
    alphabet = rng.choice(ALPHABETS)
    longest = rng.choice((1, 3, 8, 210))
    pieces = {
        prefix + text
        for prefix in ("", CONTINUATION)
        for _ in range(rng.choice((0, 5, 60)))
        if (text := _draw_text(rng, alphabet, rng.randint(1, longest)))
    }
    vocab = Vocabulary((*SPECIAL_TOKENS, *sorted(pieces)))
    lower_case = rng.random() < 0.5
    library = LibraryEncoder(vocab, WordRule(lower_case)).encode_sentences
    found = CompiledEncoder(module, vocab, WordRule(lower_case), library).encode_sentences(texts)
    expected = library(texts)
    equal = all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert equal, f"ids differ: {vocab.tokens}, lower_case={lower_case}, {texts}"
    return 1


def _match_any_bytes(module: Any, rng: random.Random, texts: list[str]) -> int:
    first, other = (
        sorted({_draw_bytes(rng, 1, 9) for _ in range(rng.randint(0, 40))}) for _ in range(2)
    )
    ids = np.array([rng.randrange(2**32) for _ in first + other], np.uint32)
    kinds = bytes(rng.choices(rng.choice((range(256), range(5))), k=256))
    limits = rng.randrange(2**32), rng.choice((0, 1, 5, 200, 2**32 - 1))
    matcher = module.Matcher(first + other, ids, len(first), kinds, *limits)
    for _ in range(3):
        for character in {*"".join(texts)}:
            word = b" " + _draw_bytes(rng, 3, 3) + b" "
            form = rng.choice((_draw_bytes(rng, 0, 6), word, _draw_bytes(rng, 255, 256)))
            matcher.learn(ord(character), form)
        matcher.encode(texts)
    return 3


def _compare_cleaning(module: Any, rng: random.Random) -> int:
    text = "".join(rng.choices(AWKWARD, k=rng.randint(0, 60)))
    results = []
    for cleaning.compiled in (module, None):
        results.append(cleaning.clean_text(text))
    assert results[0] == results[1], f"cleaned differently: {text!r}"
    return 1


def _clean_any_bytes(module: Any, rng: random.Random) -> int:
    kinds = bytes(rng.choices(range(4), k=1 << 16)) if rng.random() < 0.02 else bytes(1 << 16)
    try:
        module.clean(_draw_bytes(rng, 0, 40), kinds, bytes(rng.choices(range(2), k=256)))
    except UnicodeDecodeError:
        return 1
    return 1


if __name__ == "__main__":
    names = ["tokenizer._matcher"]
    sys.exit(run_sanitized(__file__, __doc__ or "", names, fuzz))
