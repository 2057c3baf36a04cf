"""Texts to the sequences that a model reads."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from pipeline.storage.compression import plain_name
from tokenizer.encode import Encoder
from tokenizer.vocab import IdArray, Vocabulary
from tokenizer.word_rule import WordRule


class TokenSequence(NamedTuple):
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP]; segment A has [CLS] and the first [SEP]."""

    input_ids: IdArray
    segment_a_length: int


class TextEncoder:
    """The model's tokenizer, and the longest sequence that is made, with [CLS] and [SEP]."""

    def __init__(self, vocab: Vocabulary, rule: WordRule, seq_len: int) -> None:
        self.vocab = vocab
        self.rule = rule
        self.seq_len = seq_len
        self.encoder = Encoder(vocab, rule)

    def encode_texts(self, texts: Sequence[str]) -> list[IdArray]:
        """Ids of each text, without [CLS] and [SEP], of any length."""
        ids, lengths = self.encoder.encode_sentences(texts)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(texts) else []

    def join(self, a: IdArray, b: IdArray | None = None) -> TokenSequence:
        """The sequence of one text or of a pair."""
        cls, sep = self.vocab.cls_id, self.vocab.sep_id
        second = [] if b is None else [*b.tolist(), sep]
        input_ids = np.array([cls, *a.tolist(), sep, *second], self.vocab.dtype)
        assert len(input_ids) <= self.seq_len, f"{len(input_ids)} tokens, seq_len is {self.seq_len}"
        return TokenSequence(input_ids, len(a) + 2)

    def truncate(self, a: IdArray, b: IdArray | None = None) -> tuple[IdArray, IdArray | None, int]:
        """What fits of A and B, and how many tokens were taken off.

        The longer text, B of equal ones, loses its last tokens (`_truncate_seq_pair` of
        google-research/bert run_classifier.py).
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
    """A file's name without folders, compression and extension: train of data/train.tsv.zst."""
    return plain_name(PurePosixPath(path.replace("\\", "/")).name).rsplit(".", 1)[0]
