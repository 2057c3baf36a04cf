"""A question's windows as items, and a model's outputs for them as logits of the context.

Also imports trainer.finetune and tokenizer.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenizer.vocab import IdArray
from trainer.finetune.squad.answers import WindowLogits
from trainer.finetune.squad.offsets import Pieces
from trainer.finetune.squad.records import Question
from trainer.finetune.squad.windows import Window, cut_windows, find_best_windows
from trainer.finetune.task import Item, Outputs, Split, TokenSequence
from trainer.finetune.text import TextEncoder

NO_ANSWER = (0, 0)
"""Where the answer begins and ends if the window has none: at [CLS]."""


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
    index: int, question: Question, query: IdArray, pieces: Pieces, encoder: TextEncoder, split: Split, stride: int
) -> list[WindowItem]:
    """The windows of one question, an item each: [CLS] question [SEP] pieces of the context [SEP]."""
    windows = cut_windows(len(pieces.ids), encoder.seq_len - len(query) - 3, stride)
    best_N = find_best_windows(windows, len(pieces.ids))
    items = []
    for number, window in enumerate(windows):
        read = slice(window.start, window.start + window.length)
        sequence = TokenSequence(*encoder.join(query, pieces.ids[read]))
        labels = np.zeros(0, dtype=np.int64)
        if split != "test":
            labels = np.array(_label(question, pieces, window, sequence.segment_a_length), dtype=np.int64)
        items.append(WindowItem(index, (sequence,), labels, pieces, window, best_N[read] == number))
    return items


def find_answer(question: Question, pieces: Pieces) -> tuple[int, int] | None:
    """First and last piece of the first answer; the others are for scores only."""
    answer = question.answers[0]
    return pieces.find_span(answer.start, answer.start + len(answer.text))


def read_logits(item: WindowItem, output: Outputs) -> WindowLogits:
    """What the model says of the window's context and of [CLS]."""
    offset = item.sequences[0].segment_a_length
    context_N2 = output[offset : offset + item.window.length]
    null_logits = (float(output[0, 0]), float(output[0, 1]))
    return WindowLogits(context_N2[:, 0], context_N2[:, 1], null_logits, item.may_start, item.window.start)


def _label(question: Question, pieces: Pieces, window: Window, offset: int) -> tuple[int, int]:
    """First and last token of the answer in the window's sequence; at [CLS] if it is not wholly in it."""
    span = find_answer(question, pieces) if question.answers else None
    if span is None or span[0] < window.start or span[1] >= window.start + window.length:
        return NO_ANSWER
    return span[0] - window.start + offset, span[1] - window.start + offset
