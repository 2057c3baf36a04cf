"""Logits of a question's windows to its best answers, and the files that they are written to.

Rules of google-research/bert run_squad.py, write_predictions, with two of our own: every pair of a
start and an end is looked at and not those of the 20 best starts and ends, and an answer is cut out
of the context as it was written. The three files are those of run_squad.py, and what SQuAD's
evaluators read.

Shapes: N pieces of a window's context, S spans.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.finetune.squad.offsets import Pieces
from trainer.finetune.squad.records import Question

# Of google-research/bert run_squad.py: the most pieces of an answer, and the answers of a question
# that are kept.
MAX_ANSWER_PIECES, NUM_BEST = 30, 20

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
        start_logit: Logit that the answer begins there.
        end_logit: Logit that the answer ends there.
    """

    first: int
    last: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """What spans are ranked by."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Candidate:
    """A possible answer.

    Attributes:
        text: Characters start to end - 1 of the context; empty for no answer.
        start: First character of the answer; None for no answer.
        end: One after its last.
        start_logit: Logit that the answer begins there.
        end_logit: Logit that the answer ends there.
    """

    text: str
    start: int | None
    end: int | None
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """What candidates are ranked by."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Prediction:
    """The best answers to a question.

    Attributes:
        id: The question's.
        answers: Answers of different texts, best first; none only where the context has no text.
        no_answer: Logits of no answer in the window where it is least likely.
    """

    id: str
    answers: tuple[Candidate, ...]
    no_answer: Candidate

    @property
    def text(self) -> str:
        """The best answer."""
        return self.answers[0].text if self.answers else ""

    @property
    def null_score(self) -> float:
        """How much higher the score of no answer is than the best answer's."""
        return self.no_answer.score - self.answers[0].score if self.answers else 0.0


def predict(
    question: Question, pieces: Pieces | None, windows: Sequence[WindowLogits]
) -> Prediction:
    """The best answers of all windows of a question together; none without a window."""
    # Different spans may have one text: three times as many leave enough texts in all but odd
    # cases.
    spans = [
        span for window in windows for span in find_spans(window, MAX_ANSWER_PIECES, 3 * NUM_BEST)
    ]
    answers: dict[str, Candidate] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        assert pieces is not None, "windows are of pieces"
        candidate = _to_candidate(span, question.context, pieces)
        answers.setdefault(candidate.text, candidate)
    null_logits = min((window.null_logits for window in windows), key=sum, default=(0.0, 0.0))
    return Prediction(
        question.id, tuple(answers.values())[:NUM_BEST], Candidate("", None, None, *null_logits)
    )


def find_spans(window: WindowLogits, max_pieces: int, num_spans: int) -> list[Span]:
    """The best spans of a window, of at most max_pieces, best first; of equal ones the first."""
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


def write_predictions(predictions: Sequence[Prediction], null_threshold: float | None) -> str:
    """Content of predictions.json: answers by id; with a threshold an answer may be empty."""
    return _to_json({each.id: choose_text(each, null_threshold) for each in predictions})


def choose_text(prediction: Prediction, null_threshold: float | None) -> str:
    """The answer, or nothing where no answer's score is higher by more than the threshold."""
    is_unanswered = null_threshold is not None and prediction.null_score > null_threshold
    return "" if is_unanswered else prediction.text


def write_n_best(predictions: Sequence[Prediction], *, with_no_answer: bool) -> str:
    """Content of nbest_predictions.json: each question's best answers with their probabilities."""
    return _to_json({each.id: _list_candidates(each, with_no_answer) for each in predictions})


def write_null_scores(predictions: Sequence[Prediction]) -> str:
    """Content of null_odds.json, for --na-prob-file of the evaluator of SQuAD 2.0."""
    return _to_json({each.id: each.null_score for each in predictions})


def _to_candidate(span: Span, context: str, pieces: Pieces) -> Candidate:
    start, end = int(pieces.starts[span.first]), int(pieces.ends[span.last])
    return Candidate(context[start:end], start, end, span.start_logit, span.end_logit)


def _list_candidates(prediction: Prediction, with_no_answer: bool) -> list[dict[str, object]]:
    candidates = list(prediction.answers)
    if with_no_answer or not candidates:
        ranked = sorted([*candidates, prediction.no_answer], key=lambda each: -each.score)
        candidates = ranked[:NUM_BEST]
        candidates += [] if prediction.no_answer in candidates else [prediction.no_answer]
    probabilities = softmax([each.score for each in candidates])
    return [
        {
            "text": each.text,
            "probability": probability,
            "start_logit": each.start_logit,
            "end_logit": each.end_logit,
            "start": each.start,
            "end": each.end,
        }
        for each, probability in zip(candidates, probabilities, strict=True)
    ]


def _to_json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
