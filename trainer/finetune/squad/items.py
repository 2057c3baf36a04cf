"""A question's windows as items, and a model's outputs for them as logits of the context.

A long context is cut into overlapping windows by the rules of google-research/bert run_squad.py,
convert_examples_to_features and _check_is_max_context.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer.vocab import IdArray
from trainer.finetune.squad.offsets import Pieces
from trainer.finetune.squad.predictions import WindowLogits
from trainer.finetune.squad.records import Question
from trainer.finetune.task import Item, Outputs, Split, TokenSequence
from trainer.finetune.text import TextEncoder

NO_ANSWER = (0, 0)
"""Where the answer begins and ends if the window has none: at [CLS]."""


@dataclass(frozen=True)
class Window:
    """Pieces start to start + length - 1 of a context."""

    start: int
    length: int


@dataclass(frozen=True)
class WindowItem(Item):
    """A window of a question's context.

    Attributes:
        pieces: Pieces of the whole context.
        window: Which of them are read.
        may_start: bool [length], pieces that have most context in this window.
    """

    pieces: Pieces
    window: Window
    may_start: NDArray[np.bool_]


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
    items = []
    for number, window in enumerate(windows):
        read = slice(window.start, window.start + window.length)
        sequence = TokenSequence(*encoder.join(query, pieces.ids[read]))
        labels = np.zeros(0, dtype=np.int64)
        if split != "test":
            labels = np.array(
                _label(question, pieces, window, sequence.segment_a_length), dtype=np.int64
            )
        items.append(WindowItem(index, (sequence,), labels, pieces, window, best_N[read] == number))
    return items


def cut_windows(num_pieces: int, room: int, stride: int) -> list[Window]:
    """Windows of `room` pieces, one every `stride` pieces, until one reaches the end.

    Of a context without pieces there is none. A stride above the room is cut to it: no piece is
    passed over.
    """
    windows: list[Window] = []
    start = 0
    while start < num_pieces:
        length = min(room, num_pieces - start)
        windows.append(Window(start, length))
        if start + length == num_pieces:
            break
        start += min(length, stride)
    return windows


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


def read_logits(item: WindowItem, output: Outputs) -> WindowLogits:
    """What the model says of the window's context and of [CLS]."""
    offset = item.sequences[0].segment_a_length
    context_N2 = output[offset : offset + item.window.length]
    null_logits = (float(output[0, 0]), float(output[0, 1]))
    return WindowLogits(
        context_N2[:, 0], context_N2[:, 1], null_logits, item.may_start, item.window.start
    )


def _label(question: Question, pieces: Pieces, window: Window, offset: int) -> tuple[int, int]:
    """First and last token of the answer in the window; at [CLS] if it is not wholly in it."""
    span = find_answer(question, pieces) if question.answers else None
    if span is None or span[0] < window.start or span[1] >= window.start + window.length:
        return NO_ANSWER
    return span[0] - window.start + offset, span[1] - window.start + offset
