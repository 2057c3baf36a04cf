"""Encodes text to arrays of ids, for the whole corpus.

The ids are those of the library `tokenizers` with `encode_special_tokens = True`: "[MASK]" in a
text is three words (docs/parity.md 3), or [UNK] if words are taken as they stand. `LibraryEncoder`
is the definition, which calls that library. `compiled_encoder` gives the same ids 50 times as fast,
if the matcher is compiled.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tokenizer.compiled import load
from tokenizer.compiled_encoder import CompiledEncoder
from tokenizer.export import build_tokenizer
from tokenizer.vocab import SPECIAL_TOKENS, IdArray, Vocabulary
from tokenizer.word_rule import WordRule


class LibraryEncoder:
    """Encodes sentences by the exported tokenizer, which is made when it is first needed."""

    def __init__(self, vocab: Vocabulary, rule: WordRule) -> None:
        self._vocab = vocab
        self._rule = rule

    @cached_property
    def _library(self) -> Tokenizer:
        library = build_tokenizer(self._vocab, self._rule)
        library.encode_special_tokens = True
        return library

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """As `Encoder` has it."""
        "".join(sentences).encode()  # the library does not refuse half of a surrogate pair
        # One by one: a batch is not faster on one core, and its threads do not survive a fork.
        encode = self._library.encode
        found = [encode(sentence, add_special_tokens=False).ids for sentence in sentences]
        ids = np.array([index for each in found for index in each], self._vocab.dtype)
        lengths = np.array(list(map(len, found)), np.uint32)
        return without_specials(ids, self._vocab, self._rule), lengths


def without_specials(ids: IdArray, vocab: Vocabulary, rule: WordRule) -> IdArray:
    """Replaces the ids of special tokens in a text by [UNK].

    By BERT's rule there are none, as "[MASK]" in a text is three words. Under the other rule it is
    one word, which could match the piece "[MASK]".

    Args:
        ids: [T] ids of a text, without [CLS] and [SEP]; changed in place.
        vocab: The vocabulary of the ids.
        rule: How the text became words.
    """
    if rule.keeps_words:
        specials = [vocab.ids[token] for token in SPECIAL_TOKENS]
        ids[np.isin(ids, specials)] = vocab.unk_id
    return ids


class Encoder:
    """Encodes sentences with one vocabulary; pickled without what it has met."""

    def __init__(self, vocab: Vocabulary, rule: WordRule) -> None:
        self.vocab = vocab
        self.rule = rule
        library = LibraryEncoder(vocab, rule)
        module = load("tokenizer._matcher")
        self.path: LibraryEncoder | CompiledEncoder = library
        if module is not None:
            with suppress(OverflowError):  # a vocabulary made to be large as a trie
                self.path = CompiledEncoder(module, vocab, rule, library.encode_sentences)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Vocabulary, WordRule]]:
        return Encoder, (self.vocab, self.rule)

    def encode(self, text: str) -> IdArray:
        """Ids of a text, of the vocabulary's dtype; no [CLS] or [SEP] added."""
        return self.encode_sentences([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Ids of all sentences in one array of the vocabulary's dtype; and how many of each.

        Raises UnicodeEncodeError where a sentence holds half of a surrogate pair.
        """
        ids, lengths = self.path.encode_sentences(sentences)
        return without_specials(ids, self.vocab, self.rule), lengths
