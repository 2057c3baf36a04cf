"""Text to arrays of ids: what the pipeline runs on the whole corpus.

The ids are those of `tokenizers.Tokenizer.from_file("tokenizer.json")` with `encode_special_tokens = True`, on every
text (docs/parity.md 3): "[MASK]" in a text is three words, and no special id but [UNK]'s comes out of one.

Two paths give them, always the same: `numpy_encoder`, in plain Python and numpy, and `compiled_encoder`, which is taken
where this installation has the compiled matcher (`tokenizer.compiled` says when).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenizer.compiled import load
from tokenizer.compiled_encoder import CompiledEncoder
from tokenizer.numpy_encoder import NumpyEncoder
from tokenizer.vocab import IdArray, Vocabulary


class Encoder:
    """Encodes sentences with one vocabulary; pickled as its two arguments, without what it has met.

    Attributes:
        path: The one of the two encoders that is used.
    """

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self.vocab = vocab
        self.lower_case = lower_case
        self.path = _choose_path(vocab, lower_case)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Vocabulary, bool]]:
        return Encoder, (self.vocab, self.lower_case)

    def encode(self, text: str) -> IdArray:
        """Ids of a text, of the vocabulary's dtype; no [CLS] or [SEP] added."""
        return self.encode_sentences([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Ids of all sentences one after the other, of the vocabulary's dtype, and each sentence's number of ids."""
        return self.path.encode_sentences(sentences)


def _choose_path(vocab: Vocabulary, lower_case: bool) -> NumpyEncoder | CompiledEncoder:
    module = load("tokenizer._matcher")
    if module is not None:
        try:
            return CompiledEncoder(module, vocab, lower_case)
        except OverflowError:  # a vocabulary made to be large as a trie; the other path has none
            pass
    return NumpyEncoder(vocab, lower_case)
