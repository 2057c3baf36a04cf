"""Counts the words of texts, as BERT's normaliser and pre-tokeniser yield them.

The normaliser looks at one character at a time and the pre-tokeniser ends words at white space, so
what stands between two spaces is a chunk whose words depend on nothing around it: chunks are
counted, and each distinct one is cut once.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tokenizer.export import build_normalizer, build_pre_tokenizer

_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")


def count_words(texts: Iterable[str], lower_case: bool) -> Counter[str]:
    """How often each word and each punctuation character occurs; memory is that of the distinct chunks."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.replace("\n", " ").split(" "))
    words: Counter[str] = Counter()
    others: dict[str, int] = {}
    for chunk, count in chunks.items():
        if chunk.isascii() and chunk.isprintable():
            folded = chunk.lower() if lower_case else chunk
            for word in [folded] if chunk.isalnum() else _ASCII_WORDS.findall(folded):
                words[word] += count
        else:
            others[chunk] = count
    # Normalised Chinese is one chunk a character, and recurs.
    normalize = build_normalizer(lower_case).normalize_str
    split_words = build_pre_tokenizer().pre_tokenize_str
    normalized: Counter[str] = Counter()
    for chunk, count in others.items():
        for part in normalize(chunk).split(" "):
            normalized[part] += count
    for part, count in normalized.items():
        for word, _ in split_words(part):
            words[word] += count
    return words
