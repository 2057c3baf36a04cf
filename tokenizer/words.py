"""Counts the words of texts under a word rule.

Texts are first cut at white space into chunks. No rule makes a word across white space, so the
words of a chunk do not depend on the text around it. The occurrences of each distinct chunk are
counted, and it is cut into words only once.
"""

from collections import Counter
from collections.abc import Iterable

from tokenizer.word_rule import WordRule


def count_words(texts: Iterable[str], rule: WordRule) -> Counter[str]:
    """Counts how often each word occurs.

    Memory grows with the number of distinct chunks: the pieces of text between white space.

    Args:
        texts: Cleaned texts (`pipeline.text.cleaning`), whose only white space is " " and line
            ends.
        rule: How a text becomes words. By BERT's rule a punctuation character is a word too.
    """
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(text.replace("\n", " ").split(" "))
    if rule.keeps_words:
        del chunks[""]
        return chunks
    normalizer = rule.normalizer()
    assert normalizer is not None, "words that change have a normaliser"
    normalize = normalizer.normalize_str
    split_words = rule.pre_tokenizer().pre_tokenize_str

    # A normalised chunk is cut at spaces once more, because normalisation puts spaces around every
    # Chinese character, and these parts recur often.
    normalized: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for part in normalize(chunk).split(" "):
            normalized[part] += count
    words: Counter[str] = Counter()
    for part, count in normalized.items():
        for word, _ in split_words(part):
            words[word] += count
    return words
