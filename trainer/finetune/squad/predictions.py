"""What is predicted for a question, and the files it is written to.

The three files are those of google-research/bert run_squad.py, and what SQuAD's evaluators read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.finetune.squad.answers import Span, WindowLogits, find_spans, softmax
from trainer.finetune.squad.offsets import Pieces
from trainer.finetune.squad.records import Question

# Of google-research/bert run_squad.py: the most pieces of an answer, and the answers of a question that are kept.
MAX_ANSWER_PIECES, NUM_BEST = 30, 20


@dataclass(frozen=True)
class Candidate:
    """A possible answer.

    Attributes:
        text: Characters start to end - 1 of the context; empty for no answer.
        start: Its first character; None for no answer.
        end: One after its last.
        start_logit: That the answer begins there.
        end_logit: That it ends there.
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
        no_answer: Its logits in the window where it is least likely.
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


def predict(question: Question, pieces: Pieces | None, windows: Sequence[WindowLogits]) -> Prediction:
    """The best answers of all windows of a question together; none without a window."""
    # Different spans may have one text: three times as many leave enough texts in all but odd cases.
    spans = [span for window in windows for span in find_spans(window, MAX_ANSWER_PIECES, 3 * NUM_BEST)]
    answers: dict[str, Candidate] = {}
    for span in sorted(spans, key=lambda span: -span.score):
        assert pieces is not None, "windows are of pieces"
        candidate = _to_candidate(span, question.context, pieces)
        answers.setdefault(candidate.text, candidate)
    null_logits = min((window.null_logits for window in windows), key=sum, default=(0.0, 0.0))
    return Prediction(question.id, tuple(answers.values())[:NUM_BEST], Candidate("", None, None, *null_logits))


def write_predictions(predictions: Sequence[Prediction], null_threshold: float | None) -> str:
    """Content of predictions.json: the answer to each question by its id; with a threshold it may be empty."""
    return _to_json({each.id: choose_text(each, null_threshold) for each in predictions})


def choose_text(prediction: Prediction, null_threshold: float | None) -> str:
    """The answer, or nothing where no answer's score is higher by more than the threshold."""
    is_unanswered = null_threshold is not None and prediction.null_score > null_threshold
    return "" if is_unanswered else prediction.text


def write_n_best(predictions: Sequence[Prediction], *, with_no_answer: bool) -> str:
    """Content of nbest_predictions.json: each question's best answers with their probabilities among themselves."""
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
