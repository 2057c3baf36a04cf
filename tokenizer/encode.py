"""Text to arrays of ids: what the pipeline runs on the whole corpus.

The ids are those of the library `tokenizers` with `encode_special_tokens = True`: "[MASK]" in a
text is three words (docs/parity.md 3). `LibraryEncoder`, the definition, asks that library;
`compiled_encoder` gives the same ids, 50 times as fast, where the matcher is compiled.
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
from tokenizer.vocab import IdArray, Vocabulary


class LibraryEncoder:
    """Encodes sentences by the exported tokenizer, which is made when it is first needed."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self._vocab, self._lower_case = vocab, lower_case

    @cached_property
    def _library(self) -> Tokenizer:
        library = build_tokenizer(self._vocab, self._lower_case)
        library.encode_special_tokens = True
        return library

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """As `Encoder` has it."""
        "".join(sentences).encode()  # the library does not refuse half of a surrogate pair
        # One by one: a batch is not faster on one core, and its threads do not survive a fork.
        encode = self._library.encode
        found = [encode(sentence, add_special_tokens=False).ids for sentence in sentences]
        ids = np.array([index for each in found for index in each], self._vocab.dtype)
        return ids, np.array(list(map(len, found)), np.uint32)


class Encoder:
    """Encodes sentences with one vocabulary; pickled without what it has met."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self.vocab, self.lower_case = vocab, lower_case
        library, module = LibraryEncoder(vocab, lower_case), load("tokenizer._matcher")
        self.path: LibraryEncoder | CompiledEncoder = library
        if module is not None:
            with suppress(OverflowError):  # a vocabulary made to be large as a trie
                self.path = CompiledEncoder(module, vocab, lower_case, library.encode_sentences)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Vocabulary, bool]]:
        return Encoder, (self.vocab, self.lower_case)

    def encode(self, text: str) -> IdArray:
        """Ids of a text, of the vocabulary's dtype; no [CLS] or [SEP] added."""
        return self.encode_sentences([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Ids of all sentences in one array of the vocabulary's dtype; and how many of each.

        Raises UnicodeEncodeError where a sentence holds half of a surrogate pair.
        """
        return self.path.encode_sentences(sentences)
