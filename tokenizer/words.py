"""Counts the words of texts, as BERT's normaliser and pre-tokeniser yield them.

The normaliser looks at one character at a time and the pre-tokeniser ends words at white space, so
what stands between two spaces is a chunk whose words depend on nothing around it: chunks are
counted, and each distinct one is cut once.
"""

from collections import Counter
from collections.abc import Iterable

from tokenizers.pre_tokenizers import BertPreTokenizer

from tokenizer.export import build_normalizer


def count_words(texts: Iterable[str], lower_case: bool) -> Counter[str]:
    """How often each word and punctuation character occurs; memory is that of distinct chunks."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.replace("\n", " ").split(" "))
    normalize = build_normalizer(lower_case).normalize_str
    split_words = BertPreTokenizer().pre_tokenize_str
    # Normalised Chinese is one chunk a character, and recurs.
    normalized, words = Counter[str](), Counter[str]()
    for chunk, count in chunks.items():
        for part in normalize(chunk).split(" "):
            normalized[part] += count
    for part, count in normalized.items():
        for word, _ in split_words(part):
            words[word] += count
    return words
