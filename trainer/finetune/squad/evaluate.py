"""Computes exact match and F1 of answers as SQuAD's official evaluators define them.

Answers are normalized before they are compared (`normalize_answer`). A right answer such as "The"
is empty after that, and here the two evaluators differ. That of 2.0 ignores such right answers.
That of 1.1 compares them: a prediction that is empty too has exact match 1, but F1 0. In 2.0 the F1
of two empty texts is 1.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Marks(NamedTuple):
    """How good a predicted answer is, compared with the right answers of its question.

    Each number is the best that the prediction reaches with any of the right answers.

    Attributes:
        exact: 1 if prediction and right answer are equal after normalization, otherwise 0.
        f1: F1 over the words that prediction and right answer share, from 0 to 1.
    """

    exact: float
    f1: float


class Judged(NamedTuple):
    """A predicted answer to a question of SQuAD 2.0, with its marks and its null score.

    A question is left unanswered if its null score is above a threshold. `find_threshold` chooses
    the threshold from these records.

    Attributes:
        marks: Exact match and F1 of the predicted answer. They count only if the answer is given;
            if the question is left unanswered, `has_answer` decides.
        null_score: The score of giving no answer minus the score of the predicted answer. The
            score of giving no answer is the sum of the two logits of [CLS]. The score of an answer
            is the sum of the start logit of its first piece and the end logit of its last piece.
        has_answer: Whether the question has a right answer.
        has_text: Whether the predicted answer is not empty.
    """

    marks: Marks
    null_score: float
    has_answer: bool
    has_text: bool


def normalize_answer(text: str) -> str:
    """Returns an answer in the form in which answers are compared.

    That form has lower case, single spaces, no ASCII punctuation, and none of the words a, an and
    the.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def mark_v1(prediction: str, answers: Sequence[str]) -> Marks:
    """Returns the marks of a predicted answer by the rules of SQuAD 1.1.

    Args:
        prediction: The predicted answer.
        answers: The right answers, at least one.
    """
    return _best_mark(prediction, answers, both_empty=0.0)


def mark_v2(prediction: str, answers: Sequence[str]) -> Marks:
    """Returns the marks of a predicted answer by the rules of SQuAD 2.0.

    If the question has no right answer, only the empty prediction is right.

    Args:
        prediction: The predicted answer; empty for no answer.
        answers: The right answers; empty for a question without one.
    """
    counted_answers = [answer for answer in answers if normalize_answer(answer)] or [""]
    return _best_mark(prediction, counted_answers, both_empty=1.0)


def average_marks(marks: Sequence[Marks]) -> dict[str, float]:
    """Returns the mean marks of questions in percent, under the keys "exact" and "f1".

    Args:
        marks: The marks of each question, between 0 and 1; at least one.
    """
    sums = (sum(values) for values in zip(*marks, strict=True))
    return {
        name: 100.0 * total / len(marks) for name, total in zip(Marks._fields, sums, strict=True)
    }


def apply_threshold(judged: Sequence[Judged], threshold: float) -> list[Marks]:
    """Returns the marks of all questions, given the threshold for leaving a question unanswered.

    A question with a null score above the threshold is left unanswered. Its exact match and F1 are
    1 if it has no right answer, otherwise 0.
    """
    without_answer = {True: Marks(0.0, 0.0), False: Marks(1.0, 1.0)}
    return [
        without_answer[answer.has_answer] if answer.null_score > threshold else answer.marks
        for answer in judged
    ]


def find_threshold(judged: Sequence[Judged]) -> float:
    """Returns the threshold of the null score that gives the best mean F1.

    The threshold is halfway between two neighbouring null scores, or 1 above the highest one if it
    is best to answer every question. If it is best to answer none, the threshold is below every
    null score. The official evaluator may choose a threshold that divides questions with the same
    null score; this function does not.
    """
    ranked = sorted(judged, key=lambda answer: answer.null_score)
    # The sum of F1 if the answers up to here are given and those after it are not.
    sum_f1 = float(sum(not answer.has_answer for answer in judged))
    best = sum_f1
    threshold = math.nextafter(ranked[0].null_score, -math.inf)
    for answer, following in zip(ranked, [*ranked[1:], None], strict=True):
        sum_f1 += answer.marks.f1 if answer.has_answer else -float(answer.has_text)
        is_last_of_equals = following is None or following.null_score != answer.null_score
        if is_last_of_equals and sum_f1 > best:
            best = sum_f1
            next_score = following.null_score if following else answer.null_score + 2.0
            threshold = (answer.null_score + next_score) / 2
    return threshold


def _best_mark(prediction: str, answers: Iterable[str], both_empty: float) -> Marks:
    """Returns the best `exact` and the best `f1` of a prediction over all right answers.

    All texts are compared after `normalize_answer`.

    Args:
        prediction: The predicted answer.
        answers: The right answers, at least one.
        both_empty: The F1 of a prediction and a right answer that are both empty after
            normalization.
    """
    predicted = normalize_answer(prediction)
    expected_texts = [normalize_answer(answer) for answer in answers]
    return Marks(
        exact=max(float(predicted == expected) for expected in expected_texts),
        f1=max(
            _word_f1(predicted.split(), expected.split(), both_empty) for expected in expected_texts
        ),
    )


def _word_f1(found: Sequence[str], expected: Sequence[str], both_empty: float) -> float:
    """Returns F1 over the words that two answers share, or `both_empty` if neither has words."""
    if not found and not expected:
        return both_empty
    num_same = (Counter(found) & Counter(expected)).total()
    return 2 * num_same / (len(found) + len(expected))
