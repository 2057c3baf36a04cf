"""Computes exact match and F1 of answers as SQuAD's official evaluators define them.

The evaluators of 1.1 and 2.0 differ for right answers of which normalization leaves nothing. 2.0
ignores such answers. The F1 of two empty texts is 1 in 2.0, and 0 in 1.1.
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
    """How good a predicted answer is, compared with the best-fitting right answer.

    Attributes:
        exact: 1 if the texts are equal after normalization, otherwise 0.
        f1: F1 over the words that the texts share, from 0 to 1.
    """

    exact: float
    f1: float


class Judged(NamedTuple):
    """A predicted answer to a question of SQuAD 2.0.

    It has all numbers from which the threshold for giving no answer is chosen.

    Attributes:
        marks: Exact match and F1 of the answer, for the case that it is given.
        null_score: How much the sum of the logits of [CLS], which stands for giving no answer,
            exceeds the sum of the logits of this answer's first and last piece.
        has_answer: Whether the question has a right answer.
        has_text: Whether the predicted answer is not empty.
    """

    marks: Marks
    null_score: float
    has_answer: bool
    has_text: bool


def normalize_answer(text: str) -> str:
    """Returns an answer in the form that is compared.

    It has lower case, single spaces, no ASCII punctuation, and none of the words a, an and the.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def mark_v1(prediction: str, answers: Sequence[str]) -> Marks:
    """Returns an answer's marks by the rules of SQuAD 1.1."""
    return _best_mark(prediction, answers, both_empty=0.0)


def mark_v2(prediction: str, answers: Sequence[str]) -> Marks:
    """Returns an answer's marks by the rules of SQuAD 2.0.

    If the question has no right answer, only the empty prediction is right.
    """
    counted_answers = [answer for answer in answers if normalize_answer(answer)] or [""]
    return _best_mark(prediction, counted_answers, both_empty=1.0)


def average(marks: Sequence[Marks]) -> dict[str, float]:
    """Returns the means of `exact` and `f1` in percent, as the official evaluators name them."""
    sums = (sum(values) for values in zip(*marks, strict=True))
    return {
        name: 100.0 * total / len(marks) for name, total in zip(Marks._fields, sums, strict=True)
    }


def apply_threshold(judged: Sequence[Judged], threshold: float) -> list[Marks]:
    """Returns the marks of all answers for one threshold.

    If the null score of a question is above the threshold, the prediction for it is no answer.
    """
    without_answer = {True: Marks(0.0, 0.0), False: Marks(1.0, 1.0)}
    return [
        without_answer[answer.has_answer] if answer.null_score > threshold else answer.marks
        for answer in judged
    ]


def find_threshold(judged: Sequence[Judged]) -> float:
    """Returns the threshold of the null score that gives the best mean F1.

    It is halfway between two neighbouring null scores. If it is best to give no answer at all, it
    is below every null score. Questions with the same null score are answered together, unlike in
    the official evaluator.
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
