"""Output for a question's windows to its best answers, and the files that they are written to.

Rules of google-research/bert run_squad.py, write_predictions, with two of our own: every pair of a
start and an end is looked at and not those of the 20 best starts and ends, and an answer is cut out
of the context as it was written. The three files are those of run_squad.py, and what SQuAD's
evaluators read.

Shapes: N pieces of a window's context, L lengths of an answer, S spans.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.finetune.squad.items import WindowItem
from trainer.finetune.squad.records import Question
from trainer.finetune.task import Output

# Of google-research/bert run_squad.py: the most pieces of an answer, and the answers of a question
# that are kept.
MAX_ANSWER_PIECES, NUM_BEST = 30, 20


class Candidate(NamedTuple):
    """A possible answer: characters start to end - 1 of the context; no answer has none."""

    text: str
    start: int | None
    end: int | None
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """What candidates are ranked by."""
        return self.start_logit + self.end_logit


class Prediction(NamedTuple):
    """Answers to a question of different texts, best first; none where the context has no text.

    no_answer has the logits of no answer in the window where it is least likely.
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


def predict(question: Question, windows: Sequence[tuple[WindowItem, Output]]) -> Prediction:
    """The best answers of all windows of a question together; none without a window."""
    found = [each for window in windows for each in _iterate_candidates(question.context, *window)]
    answers: dict[str, Candidate] = {}
    for candidate in sorted(found, key=lambda each: -each.score):
        answers.setdefault(candidate.text, candidate)
    null_logits = [tuple(map(float, output[0])) for _, output in windows]
    start, end = min(null_logits, key=sum, default=(0.0, 0.0))
    best = tuple(answers.values())[:NUM_BEST]
    return Prediction(question.id, best, Candidate("", None, None, start, end))


def find_spans(
    starts_N: Output, ends_N: Output, may_start_N: NDArray[np.bool_], max_pieces: int, num: int
) -> list[tuple[int, int]]:
    """First and last pieces of the best spans, of at most max_pieces, best first; of equal ones the first."""
    num_pieces = len(starts_N)
    lengths = np.arange(min(max_pieces, num_pieces))
    ends_NL = np.arange(num_pieces)[:, None] + lengths
    scores_NL = (
        starts_N[:, None].astype(np.float64)
        + np.append(ends_N, 0.0)[np.minimum(ends_NL, num_pieces)]
    )
    scores_NL[(ends_NL >= num_pieces) | ~may_start_N[:, None]] = -np.inf
    order_S = np.argsort(-scores_NL.ravel(), kind="stable")[:num]
    kept_S = order_S[np.isfinite(scores_NL.ravel()[order_S])]
    return [(start, start + more) for start, more in (divmod(int(n), len(lengths)) for n in kept_S)]


def choose_text(prediction: Prediction, null_threshold: float | None) -> str:
    """The answer, or nothing where no answer's score is higher by more than the threshold."""
    is_unanswered = null_threshold is not None and prediction.null_score > null_threshold
    return "" if is_unanswered else prediction.text


def prediction_files(
    predictions: Sequence[Prediction], null_threshold: float | None
) -> dict[str, str]:
    """Answers and the best ones with probabilities, by id; with a threshold answers may be empty.

    null_odds.json is for --na-prob-file of the evaluator of SQuAD 2.0.
    """
    is_v2 = null_threshold is not None
    texts = {each.id: choose_text(each, null_threshold) for each in predictions}
    best = {each.id: _list_candidates(each, is_v2) for each in predictions}
    files = {"predictions.json": _to_json(texts), "nbest_predictions.json": _to_json(best)}
    if is_v2:
        files["null_odds.json"] = _to_json({each.id: each.null_score for each in predictions})
    return files


def _iterate_candidates(context: str, item: WindowItem, output: Output) -> Iterator[Candidate]:
    """The best answers of a window, best first."""
    offset = item.sequences[0].segment_a_length
    starts_N, ends_N = output[offset : offset + item.window.length].T
    # Different spans may have one text: three times as many leave enough texts in all but odd
    # cases.
    spans = find_spans(starts_N, ends_N, item.may_start, MAX_ANSWER_PIECES, 3 * NUM_BEST)
    for first, last in spans:
        start = int(item.pieces.starts[item.window.start + first])
        end = int(item.pieces.ends[item.window.start + last])
        logits = float(starts_N[first]), float(ends_N[last])
        yield Candidate(context[start:end], start, end, *logits)


def _list_candidates(prediction: Prediction, with_no_answer: bool) -> list[dict[str, object]]:
    candidates = list(prediction.answers)
    if with_no_answer or not candidates:
        ranked = sorted([*candidates, prediction.no_answer], key=lambda each: -each.score)
        candidates = ranked[:NUM_BEST]
        candidates += [] if prediction.no_answer in candidates else [prediction.no_answer]
    scores = np.array([each.score for each in candidates])
    powers = np.exp(scores - scores.max())
    return [
        {"text": each.text, "probability": float(power / powers.sum())} | each._asdict()
        for each, power in zip(candidates, powers, strict=True)
    ]


def _to_json(content: Mapping[str, object]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
