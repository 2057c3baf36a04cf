# ruff: noqa: RUF001 -- letters and signs that resemble ASCII are the point here
"""What the compiled path does besides giving the library's ids, which test_encode.py holds."""

import itertools
import string
import unicodedata

import numpy as np
import pytest

from tests.tokenizer.encoded_texts import encoded
from tokenizer.compiled import load
from tokenizer.compiled_encoder import CompiledEncoder, _kinds
from tokenizer.encode import Encoder, LibraryEncoder
from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary
from tokenizer.word_rule import UNCASED


@pytest.fixture(scope="module")
def module():
    return load("tokenizer._matcher") or pytest.skip(
        "the compiled matcher is not built, or BEAMBERT_COMPILED=0"
    )


def make(module, vocab):
    return CompiledEncoder(module, vocab, UNCASED, LibraryEncoder(vocab, UNCASED).encode_sentences)


def test_only_marks_that_are_put_in_order_are_left_to_the_library(module, small_vocab):
    encoder = make(module, small_vocab)
    ranges = range(0x80, 0x300), range(0x370, 0x530), range(0x4E00, 0x9FFD), range(0xAC00, 0xD7A4)
    common = (c for c in map(chr, itertools.chain(*ranges)) if unicodedata.category(c) != "Cn")
    assert None not in encoder._find_forms("".join(common))
    assert encoder._find_forms("éΣ中ﬁ“\u00a0\u0301\u302e") == [
        b"e", "σ".encode(), " 中 ".encode(), "ﬁ".encode(), " “ ".encode(), b" ", b"", None,
    ]  # fmt: skip


def test_a_vocabulary_too_large_as_a_trie_is_left_to_the_library(module):
    """Behind each of 18,000 different beginnings stand 190 pieces that its failure would name."""
    letters = string.ascii_lowercase
    endings = itertools.product(letters, letters, letters, "z")
    pieces = [*letters, *("a" * 190 + "".join(ending) for ending in endings)]
    vocab = Vocabulary((*SPECIAL_TOKENS, *pieces, *(f"##{piece}" for piece in pieces)))
    with pytest.raises(OverflowError, match="too many"):
        make(module, vocab)
    encoder = Encoder(vocab, UNCASED)
    assert type(encoder.path) is LibraryEncoder
    assert encoder.encode("a" * 190 + "xyzz").tolist() == [vocab.ids["a" * 190 + "xyzz"]]


def test_words_and_chunks_without_end(module, small_vocab):
    texts = ["a" * 300_000, "é" * 100_000, "é\u302e" * 30_000]
    texts += [mark * 30_000 for mark in ("\u3000", "\1", ".")]
    encoder, expected = make(module, small_vocab), LibraryEncoder(small_vocab, UNCASED)
    assert encoded(encoder, texts) == encoded(expected, texts)


ARGUMENTS = [b"a", b"ab", b"b"], np.array([5, 6, 7], np.uint32), 2, _kinds(UNCASED), 1, 200


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, [b"ab", b"a", b"b"], "not sorted"),
        (0, [b"a", b"a", b"b"], "not sorted"),
        (0, [b"a", b"b", "b"], "bytes"),
        (0, (b"a", b"b", b"c"), "list"),
        (0, [b"a"], "an id of 4 bytes"),
        (2, 4, "pieces"),
        (3, bytes(255), "256"),
    ],
)
def test_the_matcher_refuses_what_is_no_vocabulary(module, index, value, message):
    module.Matcher(*ARGUMENTS)
    with pytest.raises((ValueError, TypeError, OverflowError), match=message):
        module.Matcher(*ARGUMENTS[:index], value, *ARGUMENTS[index + 1 :])


def test_the_matcher_refuses_what_are_no_sentences(module):
    matcher = module.Matcher(*ARGUMENTS)
    for sentences in (None, 3, ["a", b"a"], ["a", None]):
        with pytest.raises(TypeError):
            matcher.encode(sentences)


def test_a_form_too_long_is_none(module):
    matcher = module.Matcher(*ARGUMENTS)
    matcher.learn(ord("é"), b"a" * 256)
    assert matcher.encode(["a é"])[2] == [(1, 0, "é".encode())]
    matcher.learn(ord("é"), b"b")
    assert matcher.encode(["a é"])[2] == []
