"""Vocabularies for the tests of tokenizer/."""

import sys
import unicodedata
from pathlib import Path

import pytest

from tokenizer.vocab import SPECIAL_TOKENS, Vocabulary, parse_vocab
from tokenizer.word_rule import WordRule

WORDS = "the cat sat on mat un affable a b c . , ! [ ] #"
PIECES = "##aff ##able ##s ##a ##b ##c"


@pytest.fixture(scope="session")
def small_vocab() -> Vocabulary:
    """A vocabulary small enough to foresee what it gives."""
    return Vocabulary((*SPECIAL_TOKENS, *WORDS.split(), *PIECES.split()))


@pytest.fixture(scope="session")
def character_vocab() -> Vocabulary:
    """Two-letter words and every assigned character, so that hardly anything hides in an [UNK]."""
    others = ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")
    characters = [
        c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in others
    ]
    return Vocabulary((*SPECIAL_TOKENS, "ab", "##ab", *characters, *(f"##{c}" for c in characters)))


@pytest.fixture(scope="session", params=["uncased", "cased", "multilingual-cased"])
def bert_vocab(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Vocabulary, WordRule]:
    """Each published vocabulary, and how its text becomes words."""
    path = shared_data / f"data/bert_vocab/bert-base-{request.param}-vocab.txt"
    return parse_vocab(path.read_bytes(), path.name), WordRule(request.param == "uncased")
