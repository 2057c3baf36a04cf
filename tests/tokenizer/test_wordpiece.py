import json
import sys
import unicodedata

import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from tests.tokenizer import reference
from tests.tokenizer.reference import reference_tokenize, split_words
from tokenizer.vocab import Vocabulary
from tokenizer.word_rule import WordRule


@pytest.fixture(scope="module")
def google_cases(shared_data):
    return json.loads((shared_data / "data/bert_sample/wordpiece_cases.json").read_text())


def test_google_basic_tokenizer_cases(google_cases):
    for case in google_cases["basic_tokenizer"]:
        assert split_words(case["text"], case["lower"]) == case["tokens"]


def test_google_wordpiece_cases(google_cases):
    vocab = Vocabulary(tuple(google_cases["wordpiece"]["vocab"]))
    for case in google_cases["wordpiece"]["cases"]:
        assert reference_tokenize(case["text"], vocab, lower_case=False) == case["tokens"]


def test_google_full_tokenizer_cases(google_cases):
    suite = google_cases["full_tokenizer"]
    vocab = Vocabulary(tuple(suite["vocab"]))
    for case in suite["cases"]:
        tokens = reference_tokenize(case["text"], vocab, suite["lower"])
        assert tokens == case["tokens"]
        assert [vocab.ids[token] for token in tokens] == case["ids"]


def test_google_character_classes(google_cases):
    suites = {"is_whitespace": reference.is_space, "is_control": reference.is_dropped}
    for name, is_member in {**suites, "is_punctuation": reference.is_punctuation}.items():
        assert all(map(is_member, google_cases[name]["true"]))
        assert not any(map(is_member, google_cases[name]["false"]))


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_library_makes_the_same_words_of_characters_classified_alike_since_unicode_3_2(
    lower_case,
):
    classify, classify_then = unicodedata.category, unicodedata.ucd_3_2_0.category
    characters = [c for c in map(chr, range(sys.maxunicode + 1)) if classify(c) == classify_then(c)]
    settled = [c for c in characters if classify(c) not in ("Cs", "Co", "Cn")]
    assert len(settled) > 90_000
    for text in (f"a{c}b {c}" for c in settled[:: 1 if lower_case else 9]):
        assert split_words(text, lower_case) == library_words(text, lower_case)


DIFFERENCES = {
    "private use is dropped": ("a\ue000b", ["a\ue000b"], ["ab"]),
    "private use is dropped in all planes": ("a\U0010fffdb", ["a\U0010fffdb"], ["ab"]),
    "CJK from U+2B820": ("a\U0002b820b", ["a", "\U0002b820", "b"], ["a\U0002b820b"]),
    "CJK to U+2B91F": ("a\U0002b91fb", ["a", "\U0002b91f", "b"], ["a\U0002b91fb"]),
    "punctuation of Unicode 13": ("a\u2e52b", ["a", "\u2e52", "b"], ["a\u2e52b"]),
    "a mark of Unicode 9": ("a\u08e0b", ["ab"], ["a\u08e0b"]),
    "final sigma": ("ΟΔΟΣ", ["οδος"], ["οδοσ"]),
}


@pytest.mark.parametrize(("text", "ours", "librarys"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_documented_differences_of_the_library(text, ours, librarys):
    assert split_words(text, lower_case=True) == ours
    assert library_words(text, lower_case=True) == librarys


def library_words(text: str, lower_case: bool) -> list[str]:
    normalized = WordRule(lower_case).normalize(text)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(normalized)]
