# ruff: noqa: RUF001 -- letters and signs that resemble ASCII are the point here
"""Texts that are hard to encode, and the library's ids of texts."""

import numpy as np
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tokenizer.export import tokenizer_json
from tokenizer.vocab import Vocabulary
from tokenizer.word_rule import WordRule

SPECIAL_TEXTS = [
    "",
    " ",
    "\0",
    "\n\t\r\x0b\x0c\x1c\x7f\x85\u2028",
    "a\0b\x07c\x1fd",
    "line\none\r\ntwo\n",
    "[MASK] [CLS][SEP]the[PAD] [UNK] [mask] [unused0]",
    "##s the##s",
    "Cats, cat's (cats) CATS—“cat” ‘cat’ a–b …",
    "e\u0301 E\u0301\u0323 ,\u0301 \u0301a a\u0301\u0323\u0301 -\u0323",
    "ΟΔΟΣ ΣΑΣ Σ σς Σ, ΑΣ.",
    "İstanbul ǅ ﬁ ß ẞ K Å ΐ",
    "中国cat中 ，。国\U0002b820\U00020000豈",
    "a\u00a0b\u3000c\u2003d\u200be\ufefff\u00adg",
    "\ue000\ufffd\uffff\U0010ffff",
    "👩‍👩‍👧 🇬🇧 é️",
    "한국어 각 ก็ ไทย हिन्दी",
    "a" * 200 + " " + "a" * 201 + " " + "é" * 200 + " " + "é" * 201 + " " + "cat" * 70,
    "中" * 500,
    "\u302e\U0001d165 a\U0001d165\u302e\u0301b, 中\u1b44\u0323\u302e \U0001d15e\U0001d165"
    " \U0001d16d",
]
CHARACTERS = (
    "abcé σςΣAÉ中国，.,![]#'\u0301\u0323\u2003\u200b\0\n\t\r\x0b\u0085\ue000“–"
    "\u302e\U0001d165\U0001d16d\u1b44"
)
TEXT = st.one_of(
    st.text(),
    st.text(st.sampled_from(CHARACTERS)),
    st.lists(st.sampled_from(SPECIAL_TEXTS)).map(" ".join),
)


def load_library(vocab: Vocabulary, rule: WordRule) -> Tokenizer:
    """The exported file, as the pipeline is defined by it."""
    library = Tokenizer.from_str(tokenizer_json(vocab, rule))
    library.encode_special_tokens = True
    return library


def library_ids(library: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [library.encode(text, add_special_tokens=False).ids for text in texts]


def encoded(encoder, texts: list[str]) -> list[list[int]]:
    values, lengths = encoder.encode_sentences(texts)
    return [ids.tolist() for ids in np.split(values, np.cumsum(lengths)[:-1])] if texts else []
