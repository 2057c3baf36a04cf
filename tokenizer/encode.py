"""Encodes text to arrays of ids.

A text never gives the id of a special token but [UNK]. By BERT's rule "[MASK]" in a text is three
words (docs/parity.md 3), as in the library `tokenizers` with `encode_special_tokens = True`. By the
rule "whitespace" it is one word, which becomes [UNK]. `LibraryEncoder` calls that library, and
defines which ids are right. `compiled_encoder` gives the same ids some 50 times as fast, if the
matcher is compiled.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tokenizer.compiled import load
from tokenizer.compiled_encoder import CompiledEncoder
from tokenizer.export import build_tokenizer
from tokenizer.vocab import SPECIAL_TOKENS, IdArray, Vocabulary
from tokenizer.word_rule import WordRule


class LibraryEncoder:
    """Encodes sentences by the library `tokenizers`; the definition of all encoding."""

    def __init__(self, vocab: Vocabulary, rule: WordRule) -> None:
        """Takes a vocabulary and a word rule; the library's tokenizer is made at its first use."""
        self._vocab = vocab
        self._rule = rule

    @cached_property
    def _library(self) -> Tokenizer:
        """The library's tokenizer, which does not look for special tokens in a text."""
        library = build_tokenizer(self._vocab, self._rule)
        library.encode_special_tokens = True
        return library

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Returns the ids of all sentences in one array, and the number of ids of each sentence.

        Raises:
            UnicodeEncodeError: A sentence has half of a surrogate pair.
        """
        # Raises UnicodeEncodeError for half of a surrogate pair, which the library accepts.
        "".join(sentences).encode()
        # Sentences are encoded one by one, because a batch is not faster on one core, and the
        # library's threads do not survive a fork.
        encode = self._library.encode
        encoded = [encode(sentence, add_special_tokens=False).ids for sentence in sentences]
        all_ids = list(chain.from_iterable(encoded))
        ids = np.array(all_ids, self._vocab.dtype)
        lengths = np.array(list(map(len, encoded)), np.uint32)
        return without_specials(ids, self._vocab, self._rule), lengths


def without_specials(ids: IdArray, vocab: Vocabulary, rule: WordRule) -> IdArray:
    """Replaces the ids of special tokens by that of [UNK], if words stay as they are in the text.

    By the rule "whitespace", "[MASK]" in a text is one word, which matches the token "[MASK]". By
    BERT's rule it is three words and matches no special token, so nothing is replaced.

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
    """Encodes sentences with one vocabulary, by the compiled matcher or else by the library.

    A pickled encoder holds only the vocabulary and the rule; unpickling makes a new encoder.

    Attributes:
        vocab: The vocabulary.
        rule: The rule by which a text becomes words.
        path: The `CompiledEncoder` or `LibraryEncoder` to which sentences are passed.
    """

    def __init__(self, vocab: Vocabulary, rule: WordRule) -> None:
        """Chooses the compiled matcher, if `tokenizer.compiled` loads it, or else the library.

        Args:
            vocab: The vocabulary.
            rule: The rule by which a text becomes words.
        """
        self.vocab = vocab
        self.rule = rule
        library = LibraryEncoder(vocab, rule)
        module = load("tokenizer._matcher")
        self.path: LibraryEncoder | CompiledEncoder = library
        if module is not None:
            with suppress(OverflowError):  # the library encodes if the trie would be too large
                self.path = CompiledEncoder(module, vocab, rule, library.encode_sentences)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Vocabulary, WordRule]]:
        return Encoder, (self.vocab, self.rule)

    def encode(self, text: str) -> IdArray:
        """Returns the ids of a text, without [CLS] and [SEP], in the vocabulary's dtype.

        Raises:
            UnicodeEncodeError: The text has half of a surrogate pair.
        """
        return self.encode_sentences([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Encodes sentences, without [CLS] and [SEP].

        Args:
            sentences: N texts.

        Returns:
            [T] the ids of all sentences, one after the other, in the vocabulary's dtype; and [N]
                the number of ids of each sentence.

        Raises:
            UnicodeEncodeError: A sentence has half of a surrogate pair.
        """
        ids, lengths = self.path.encode_sentences(sentences)
        return without_specials(ids, self.vocab, self.rule), lengths
