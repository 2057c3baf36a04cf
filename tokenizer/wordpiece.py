"""Words to wordpieces by greedy longest match: the readable reference (docs/parity.md 3), oracle of the tests."""

from tokenizer.normalize import split_words
from tokenizer.vocab import CONTINUATION, UNK, Vocabulary

MAX_WORD_CHARACTERS = 200
"""A longer word is one [UNK]."""


def reference_tokenize(text: str, vocab: Vocabulary, lower_case: bool) -> list[str]:
    """Wordpieces of raw text, no [CLS] or [SEP] added; a special token's string in the text is plain text."""
    return [piece for word in split_words(text, lower_case) for piece in split_word(word, vocab)]


def split_word(word: str, vocab: Vocabulary) -> list[str]:
    """Longest vocabulary entries from left to right, "##" before all but the first; [UNK] if some rest has none."""
    if len(word) > MAX_WORD_CHARACTERS:
        return [UNK]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = CONTINUATION if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in vocab.ids), None)
        if end is None:
            return [UNK]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces
