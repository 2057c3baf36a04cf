"""Texts to pieces that know where in the text they stand."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer.export import build_tokenizer
from tokenizer.vocab import IdArray, Vocabulary


@dataclass(frozen=True)
class Pieces:
    """The pieces of one text; N of them.

    Attributes:
        ids: [N], as tokenizer.encode.Encoder makes them.
        starts: [N] int64: the first character of the text as it was written that a piece stands
            for.
        ends: [N] int64: one after the last, with the accents that are combined with it.
    """

    ids: IdArray
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def find_span(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and last piece that have a character of start to end - 1; None if none has."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class OffsetEncoder:
    """Encodes texts with their places, by an export's tokenizer; "[SEP]" in a text is a word."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self.dtype = vocab.dtype
        self.tokenizer = build_tokenizer(vocab, lower_case)
        self.tokenizer.encode_special_tokens = True

    def encode_texts(self, texts: Sequence[str]) -> list[Pieces]:
        """Pieces of each text, without [CLS] and [SEP], of any length."""
        found = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            self._to_pieces(text, each.ids, each.offsets)
            for text, each in zip(texts, found, strict=True)
        ]

    def _to_pieces(self, text: str, ids: list[int], offsets: list[tuple[int, int]]) -> Pieces:
        places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        starts, ends = places[:, 0].copy(), places[:, 1].copy()
        if not text.isascii():
            for index, end in enumerate(ends.tolist()):
                ends[index] = _skip_accents(text, end)
        return Pieces(np.array(ids, dtype=self.dtype), starts, ends)


def _skip_accents(text: str, end: int) -> int:
    """Where combining characters from `end` on end: the normalizer drops a last letter's."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
