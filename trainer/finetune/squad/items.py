"""Contexts to pieces with their places, and a question's windows of them as items.

The rules of windows are those of google-research/bert run_squad.py.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenizer.encode import without_specials
from tokenizer.export import build_tokenizer
from tokenizer.vocab import IdArray
from trainer.finetune.squad.records import Question
from trainer.finetune.task import Item, Split
from trainer.finetune.text import TextEncoder


class Pieces(NamedTuple):
    """The N pieces of one text, without [CLS] and [SEP].

    Piece n is characters starts[n] to ends[n] - 1 of the text as written, with combined accents.
    """

    ids: IdArray
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def find_span(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and last piece that have a character of start to end - 1; None if none has."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """Pieces start to start + length - 1 of a context."""

    start: int
    length: int


@dataclass(frozen=True)
class WindowItem(Item):
    """Some pieces of a context; may_start, bool [length], are those with most context here."""

    pieces: Pieces
    window: Window
    may_start: NDArray[np.bool_]


def find_pieces(texts: Sequence[str], encoder: TextEncoder) -> list[Pieces]:
    """Pieces of each text, of any length, by an export's tokenizer; "[SEP]" in a text is a word."""
    tokenizer = build_tokenizer(encoder.vocab, encoder.rule)
    tokenizer.encode_special_tokens = True
    all_pieces = []
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        places = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        ends = np.array([_skip_accents(text, end) for end in places[:, 1].tolist()], np.int64)
        ids = np.array(encoding.ids, encoder.vocab.dtype)
        ids = without_specials(ids, encoder.vocab, encoder.rule)
        all_pieces.append(Pieces(ids, places[:, 0].copy(), ends))
    return all_pieces


def cut_question(
    index: int,
    question: Question,
    query: IdArray,
    pieces: Pieces,
    encoder: TextEncoder,
    split: Split,
    stride: int,
) -> list[WindowItem]:
    """The windows of one question as items: [CLS] question [SEP] pieces of the context [SEP]."""
    windows = cut_windows(len(pieces.ids), encoder.seq_len - len(query) - 3, stride)
    best_N = find_best_windows(windows, len(pieces.ids))
    span = find_answer(question, pieces) if split != "test" and question.answers else None
    items = []
    for number, window in enumerate(windows):
        read = slice(window.start, window.start + window.length)
        sequence = encoder.join(query, pieces.ids[read])
        labels = np.zeros(0 if split == "test" else 2, np.int64)  # no answer begins, ends at [CLS]
        if span is not None and read.start <= span[0] and span[1] < read.stop:
            labels[:] = np.array(span) + sequence.segment_a_length - window.start
        items.append(WindowItem(index, (sequence,), labels, pieces, window, best_N[read] == number))
    return items


def cut_windows(num_pieces: int, room: int, stride: int) -> list[Window]:
    """Windows of `room` pieces, one every `stride` pieces, until one reaches the end.

    A stride above the room is cut to it: no piece is passed over.
    """
    stride = min(room, stride)
    starts = range(0, max(0, num_pieces - room) + stride, stride) if num_pieces else ()
    return [Window(start, min(room, num_pieces - start)) for start in starts]


def find_best_windows(windows: list[Window], num_pieces: int) -> NDArray[np.int64]:
    """Index of the window where each piece has most context, [N].

    Context is the smaller of what is left and right of the piece, plus a hundredth of the window's
    length; the first window wins where it is equal.
    """
    pieces_N = np.arange(num_pieces)
    best_N = np.full(num_pieces, -1, dtype=np.int64)
    most_N = np.full(num_pieces, -np.inf)
    for index, window in enumerate(windows):
        left_N = pieces_N - window.start
        right_N = window.length - 1 - left_N
        context_N = np.minimum(left_N, right_N) + 0.01 * window.length
        is_better_N = (left_N >= 0) & (right_N >= 0) & (context_N > most_N)
        best_N[is_better_N], most_N[is_better_N] = index, context_N[is_better_N]
    return best_N


def find_answer(question: Question, pieces: Pieces) -> tuple[int, int] | None:
    """First and last piece of the first answer; the others are for scores only."""
    answer = question.answers[0]
    return pieces.find_span(answer.start, answer.start + len(answer.text))


def _skip_accents(text: str, end: int) -> int:
    """Where combining characters from `end` on end: the normalizer drops a last letter's."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
