"""Raw text to wordpieces as google-research/bert makes them: the reference (docs/parity.md 3)."""

import unicodedata

from tokenizer.vocab import UNK, Vocabulary
from tokenizer.wordpiece import MAX_WORD_CHARACTERS, split_piece

_CJK = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
_CJK_RANGES = [[int(each, 16) for each in span.split("-")] for span in _CJK.split()]


def reference_tokenize(text: str, vocab: Vocabulary, lower_case: bool) -> list[str]:
    """Wordpieces of raw text, no [CLS] or [SEP] added; a special token in the text is text."""
    return [piece for word in split_words(text, lower_case) for piece in split_word(word, vocab)]


def split_word(word: str, vocab: Vocabulary) -> list[str]:
    """Longest vocabulary entries from left to right, "##" before all but the first, or [UNK]."""
    return split_piece(word, vocab) if len(word) <= MAX_WORD_CHARACTERS else [UNK]


def split_words(text: str, lower_case: bool) -> list[str]:
    """Words and punctuation of raw text, cleaned, and if `lower_case` without case and accents."""
    words = space_cjk(clean(text)).split()
    if lower_case:
        words = [strip_accents(word.lower()) for word in words]
    return [part for word in words for part in split_punctuation(word)]


def clean(text: str) -> str:
    """Drops NUL, U+FFFD and control characters; every white space character becomes one space."""
    return "".join(" " if is_space(c) else c for c in text if not is_dropped(c))


def space_cjk(text: str) -> str:
    """Puts spaces around each CJK ideograph, so that it becomes a word of its own."""
    return "".join(f" {c} " if is_cjk(c) else c for c in text)


def strip_accents(word: str) -> str:
    """Decomposes (NFD) and drops non-spacing marks."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


def split_punctuation(word: str) -> list[str]:
    """Cuts a word before and after each punctuation character; of an empty word nothing is left."""
    return "".join(f" {c} " if is_punctuation(c) else c for c in word).split()


def is_dropped(c: str) -> bool:
    """True for NUL, U+FFFD and the categories Cc and Cf except tab, newline and carriage return."""
    return c in "\0\ufffd" or (c not in "\t\n\r" and unicodedata.category(c) in ("Cc", "Cf"))


def is_space(c: str) -> bool:
    """True for tab, newline, carriage return and category Zs."""
    return c in "\t\n\r" or unicodedata.category(c) == "Zs"


def is_cjk(c: str) -> bool:
    """True in the blocks of CJK Unified Ideographs, not for Hangul, kana and other scripts."""
    return any(first <= ord(c) <= last for first, last in _CJK_RANGES)


def is_punctuation(c: str) -> bool:
    """True for category P, and ASCII that is neither letter, digit, space nor control, as `$`."""
    ascii_punctuation = c.isascii() and c.isprintable() and not c.isalnum() and c != " "
    return ascii_punctuation or unicodedata.category(c).startswith("P")
