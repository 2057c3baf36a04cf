"""Turns texts and pairs of texts into the token sequences that a model reads."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from pipeline.storage.compression import plain_name
from tokenizer.encode import Encoder
from tokenizer.vocab import IdArray, Vocabulary
from tokenizer.word_rule import WordRule


class TokenSequence(NamedTuple):
    """The ids of [CLS] A [SEP], or of [CLS] A [SEP] B [SEP].

    Attributes:
        input_ids: The ids, with those of [CLS] and [SEP].
        segment_a_length: The number of tokens of [CLS] A [SEP].
    """

    input_ids: IdArray
    segment_a_length: int


class TextEncoder:
    """Encodes texts for a model, as sequences of at most `seq_len` tokens with [CLS] and [SEP]."""

    def __init__(self, vocab: Vocabulary, rule: WordRule, seq_len: int) -> None:
        self.vocab = vocab
        self.rule = rule
        self.seq_len = seq_len
        self.encoder = Encoder(vocab, rule)

    def encode_texts(self, texts: Sequence[str]) -> list[IdArray]:
        """Returns the ids of each text, without [CLS] and [SEP], however long the text is."""
        ids, lengths = self.encoder.encode_sentences(texts)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(texts) else []

    def join(self, a: IdArray, b: IdArray | None = None) -> TokenSequence:
        """Adds [CLS] and [SEP] to the ids of one text, or of a pair of texts.

        The result must not exceed `seq_len`; `truncate` shortens texts that would.
        """
        sep_id = self.vocab.sep_id
        second = [] if b is None else [*b.tolist(), sep_id]
        input_ids = np.array([self.vocab.cls_id, *a.tolist(), sep_id, *second], self.vocab.dtype)
        assert len(input_ids) <= self.seq_len, f"{len(input_ids)} tokens, seq_len is {self.seq_len}"
        return TokenSequence(input_ids, len(a) + 2)

    def truncate(self, a: IdArray, b: IdArray | None = None) -> tuple[IdArray, IdArray | None, int]:
        """Shortens one text, or a pair of texts, so that `join` makes at most `seq_len` tokens.

        Tokens are taken from the end of the longer text, one at a time; from B if both are equally
        long (`_truncate_seq_pair` of google-research/bert run_classifier.py).

        Returns:
            The ids of A and of B that are left, and the number of tokens that were taken away.
        """
        if b is None:
            room = self.seq_len - 2
            return a[:room], None, max(0, len(a) - room)

        room = self.seq_len - 3
        excess = len(a) + len(b) - room
        if excess <= 0:
            return a, b, 0
        length_b = max(min(len(b), room // 2), room - len(a))
        return a[: room - length_b], b[:length_b], excess


def file_stem(path: str) -> str:
    """Returns a file's name without folders, extension and suffix of compression.

    For example, "data/train.tsv.zst" becomes "train".
    """
    return plain_name(PurePosixPath(path.replace("\\", "/")).name).rsplit(".", 1)[0]
