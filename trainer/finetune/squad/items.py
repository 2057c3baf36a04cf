"""Encodes contexts as pieces, and makes items of a question and a window of its context.

A piece is a WordPiece token with its position in the text. A context that is too long for one
sequence is cut into overlapping windows, as in google-research/bert run_squad.py.

Shapes: N pieces of a context.
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

    Piece n is made of the characters starts[n] to ends[n] - 1 of the text as it was written. The
    combining accents of a letter belong to the same piece as the letter.

    Attributes:
        ids: [N], the id of each piece.
        starts: [N], the position of each piece's first character.
        ends: [N], the position after each piece's last character.
    """

    ids: IdArray
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def find_span(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the indices of the first and last piece that overlap a range of characters.

        The range is from `start` to `end` - 1. The result is None if no piece overlaps it.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class Window(NamedTuple):
    """A range of the pieces of a context: those with the indices start to start + length - 1."""

    start: int
    length: int


@dataclass(frozen=True)
class WindowItem(Item):
    """A question with one window of its context.

    Attributes:
        pieces: All pieces of the context.
        window: The range of the pieces that this item has.
        may_start: bool [window.length], whether an answer in this window may start at each piece.
            Windows overlap, so a piece can be in several. An answer may start at a piece only in
            the window that has most context around the piece (`find_best_windows`).
    """

    pieces: Pieces
    window: Window
    may_start: NDArray[np.bool_]


def find_pieces(texts: Sequence[str], encoder: TextEncoder) -> list[Pieces]:
    """Returns the pieces of each text, however long the text is.

    "[SEP]" and the like in a text are encoded as plain text. The tokenizer is the one that exported
    models have, because it also gives the position of each piece in the text.
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

    The labels of an item are the first and the last token of the question's first answer, if the
    window has all of it. Otherwise, and for a question without answer, both are [CLS], token 0.

    Args:
        index: The index of the question among the examples.
        question: The question.
        query: The ids of the question's text, cut to the length that may be read.
        pieces: The pieces of the question's context.
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
    """Cuts a context into windows that together have all of its pieces.

    Windows begin `stride` pieces apart. The first window that reaches the end of the context is the
    last one. A context without pieces has no window.

    Args:
        num_pieces: The number of pieces of the context.
        room: The most pieces of a window.
        stride: The number of pieces from the beginning of a window to the beginning of the next
            one. A stride above `room` is reduced to `room`, so that no piece is left out.
    """
    stride = min(room, stride)
    starts = range(0, max(0, num_pieces - room) + stride, stride) if num_pieces else ()
    return [Window(start, min(room, num_pieces - start)) for start in starts]


def find_best_windows(windows: list[Window], num_pieces: int) -> NDArray[np.int64]:
    """Returns, for each piece, the index of the window in which it has most context, int64 [N].

    The context of a piece in a window is the number of pieces of the window to the left or to the
    right of it, whichever is smaller, plus a hundredth of the window's length. The first window
    wins a tie.

    Args:
        windows: All windows of the context.
        num_pieces: The number N of pieces of the context.
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
    """Returns the first and last piece of a question's first answer.

    The result is None if the characters of the answer belong to no piece. Only the first answer is
    used in training; the others are used in scores.

    Args:
        question: A question with at least one answer.
        pieces: The pieces of the question's context.
    """
    answer = question.answers[0]
    return pieces.find_span(answer.start, answer.start + len(answer.text))


def _skip_accents(text: str, end: int) -> int:
    """Returns the position after the combining accents that follow a piece in a text.

    The tokenizer drops accents, so the end that it reports for a piece is before the accents of the
    piece's last letter.

    Args:
        text: The text.
        end: The end of the piece, as the tokenizer reports it.
    """
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
