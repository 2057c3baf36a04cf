"""Encodes contexts as pieces with their positions, and makes items from windows of a context.

The windows are those of google-research/bert run_squad.py. Shapes: N pieces of a context.
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

    Piece n is made of the characters starts[n] to ends[n] - 1 of the text as it was written. A
    letter's combining accents belong to its piece.

    Attributes:
        ids: [N].
        starts: [N], the position of each piece's first character.
        ends: [N], the position after its last character.
    """

    ids: IdArray
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def find_span(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the first and last piece that overlap the characters start to end - 1.

        The result is None if no piece overlaps them.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """The pieces start to start + length - 1 of a context."""

    start: int
    length: int


@dataclass(frozen=True)
class WindowItem(Item):
    """A question with one window of its context.

    Attributes:
        pieces: All pieces of the context.
        window: The pieces that this item has.
        may_start: bool [window.length], whether an answer may start at a piece. It may if no other
            window has more context around the piece, so that each answer counts in one window.
    """

    pieces: Pieces
    window: Window
    may_start: NDArray[np.bool_]


def find_pieces(texts: Sequence[str], encoder: TextEncoder) -> list[Pieces]:
    """Encodes texts of any length. "[SEP]" in a text is encoded as text.

    The pieces are made by the tokenizer of an exported model, because it also gives the positions
    of pieces in the text.
    """
    tokenizer = build_tokenizer(encoder.vocab, encoder.rule)
    tokenizer.encode_special_tokens = True
    all_pieces = []
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        ends = np.array([_skip_accents(text, end) for end in offsets[:, 1].tolist()], np.int64)
        ids = np.array(encoding.ids, encoder.vocab.dtype)
        ids = without_specials(ids, encoder.vocab, encoder.rule)
        all_pieces.append(Pieces(ids, offsets[:, 0].copy(), ends))
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
    """Makes one item per window of a question's context: [CLS] question [SEP] window [SEP].

    The label is the first answer if the window has all of it. Otherwise, and for a question without
    answer, it is [CLS], which is token 0.

    Args:
        index: The index of the question among the examples.
        question: The question.
        query: The ids of the question.
        pieces: The pieces of its context.
        encoder: The model's tokenizer, with the length of a sequence.
        split: The use of the file. Items of a "test" file have no labels.
        stride: Number of pieces from the beginning of a window to the beginning of the next one.
    """
    windows = cut_windows(len(pieces.ids), encoder.seq_len - len(query) - 3, stride)
    best_N = find_best_windows(windows, len(pieces.ids))
    span = find_answer(question, pieces) if split != "test" and question.answers else None
    items = []
    for number, window in enumerate(windows):
        in_window = slice(window.start, window.start + window.length)
        sequence = encoder.join(query, pieces.ids[in_window])
        labels = np.zeros(0 if split == "test" else 2, np.int64)
        if span is not None and in_window.start <= span[0] and span[1] < in_window.stop:
            labels[:] = np.array(span) + sequence.segment_a_length - window.start
        may_start = best_N[in_window] == number
        items.append(WindowItem(index, (sequence,), labels, pieces, window, may_start))
    return items


def cut_windows(num_pieces: int, room: int, stride: int) -> list[Window]:
    """Returns windows of at most `room` pieces that together have all pieces of a context.

    Windows begin `stride` pieces apart, and the last one is the first that reaches the end of the
    context. A stride above `room` is reduced to `room`, so that no piece is left out. A context
    without pieces has no window.
    """
    stride = min(room, stride)
    starts = range(0, max(0, num_pieces - room) + stride, stride) if num_pieces else ()
    return [Window(start, min(room, num_pieces - start)) for start in starts]


def find_best_windows(windows: list[Window], num_pieces: int) -> NDArray[np.int64]:
    """Returns the index of the window in which each piece has most context, int64 [N].

    A piece's context is the number of pieces to its left or to its right, whichever is smaller,
    plus a hundredth of the window's length. The first window wins a tie.
    """
    pieces_N = np.arange(num_pieces)
    best_N = np.full(num_pieces, -1, dtype=np.int64)
    most_N = np.full(num_pieces, -np.inf)
    for index, window in enumerate(windows):
        left_N = pieces_N - window.start
        right_N = window.length - 1 - left_N
        context_N = np.minimum(left_N, right_N) + 0.01 * window.length
        is_better_N = (left_N >= 0) & (right_N >= 0) & (context_N > most_N)
        best_N[is_better_N] = index
        most_N[is_better_N] = context_N[is_better_N]
    return best_N


def find_answer(question: Question, pieces: Pieces) -> tuple[int, int] | None:
    """Returns the first and last piece of a question's first answer, or None if it has no piece.

    Only the first answer is trained; the others are used in scores.
    """
    answer = question.answers[0]
    return pieces.find_span(answer.start, answer.start + len(answer.text))


def _skip_accents(text: str, end: int) -> int:
    """Returns the position after the combining accents that begin at `end`.

    The tokenizer's normalizer drops accents, so the offsets of a piece do not include those of its
    last letter.
    """
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
