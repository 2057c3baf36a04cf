"""Logits of a question's windows to its best answers.

Rules of google-research/bert run_squad.py, write_predictions, with two of our own: every pair of a start and an end is
looked at and not those of the 20 best starts and ends, and an answer is cut out of the context as it was written.

Shapes: N pieces of a window's context, S spans.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class WindowLogits:
    """What the model says of one window.

    Attributes:
        start_logits: [N], that an answer begins at a piece.
        end_logits: [N], that it ends there.
        null_logits: Both logits of [CLS]: that there is no answer.
        may_start: [N] bool: pieces that have most context in this window.
        first_piece: Number of the first piece in the context.
    """

    start_logits: Logits
    end_logits: Logits
    null_logits: tuple[float, float]
    may_start: NDArray[np.bool_]
    first_piece: int


@dataclass(frozen=True)
class Span:
    """Pieces of a context that may be the answer.

    Attributes:
        first: Number of its first piece in the context.
        last: Number of its last one.
        start_logit: That it begins there.
        end_logit: That it ends there.
    """

    first: int
    last: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """What spans are ranked by."""
        return self.start_logit + self.end_logit


def find_spans(window: WindowLogits, max_pieces: int, num_spans: int) -> list[Span]:
    """The best spans of a window, of at most max_pieces each, best first; of equal ones the first, shortest first."""
    num_pieces = len(window.start_logits)
    lengths = np.arange(min(max_pieces, num_pieces))
    ends_NL = np.arange(num_pieces)[:, None] + lengths
    scores_NL = (
        window.start_logits[:, None].astype(np.float64)
        + np.append(window.end_logits, 0.0)[np.minimum(ends_NL, num_pieces)]
    )
    scores_NL[(ends_NL >= num_pieces) | ~window.may_start[:, None]] = -np.inf
    flat_S = scores_NL.ravel()
    keep = min(num_spans, int(np.isfinite(flat_S).sum()))
    lowest = np.partition(flat_S, len(flat_S) - keep)[len(flat_S) - keep] if keep else np.inf
    chosen = np.flatnonzero(flat_S >= lowest)
    chosen = chosen[np.argsort(-flat_S[chosen], kind="stable")][:keep]
    return [_make_span(window, *divmod(int(each), len(lengths))) for each in chosen]


def _make_span(window: WindowLogits, start: int, more: int) -> Span:
    end = start + more
    return Span(
        window.first_piece + start,
        window.first_piece + end,
        float(window.start_logits[start]),
        float(window.end_logits[end]),
    )


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities of scores."""
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]
