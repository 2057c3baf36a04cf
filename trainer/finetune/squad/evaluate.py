"""Exact match and F1 of answers, in percent, as SQuAD's official evaluators define them.

They differ where nothing of an answer is left: 2.0 does not count such answers, and its F1 of two
empty texts is 1, which is 0 in 1.1.
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
    """How good an answer is: 1 if it is a right one, and its best overlap of words."""

    exact: float
    f1: float


class Judged(NamedTuple):
    """An answer's marks, its null score, and whether there is a right answer, and a text."""

    marks: Marks
    null_score: float
    has_answer: bool
    has_text: bool


def normalize_answer(text: str) -> str:
    """What of an answer is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def mark_v1(prediction: str, answers: Sequence[str]) -> Marks:
    """Marks by the evaluator of SQuAD 1.1."""
    return _best_mark(prediction, answers, both_empty=0.0)


def mark_v2(prediction: str, answers: Sequence[str]) -> Marks:
    """Marks by the evaluator of SQuAD 2.0; without answers only the empty prediction is right."""
    counted = [answer for answer in answers if normalize_answer(answer)] or [""]
    return _best_mark(prediction, counted, both_empty=1.0)


def average(marks: Sequence[Marks]) -> dict[str, float]:
    """The means in percent, under the evaluators' names."""
    sums = (sum(values) for values in zip(*marks, strict=True))
    return {name: 100.0 * each / len(marks) for name, each in zip(Marks._fields, sums, strict=True)}


def apply_threshold(judged: Sequence[Judged], threshold: float) -> list[Marks]:
    """Marks where questions whose null score is above the threshold are left unanswered."""
    unanswered = {True: Marks(0.0, 0.0), False: Marks(1.0, 1.0)}
    return [
        unanswered[each.has_answer] if each.null_score > threshold else each.marks
        for each in judged
    ]


def find_threshold(judged: Sequence[Judged]) -> float:
    """The threshold with the best mean F1, halfway to the next null score.

    Unlike with the official evaluator questions of equal null score are answered together. Where it
    is best to answer nothing the threshold lies below every null score.
    """
    ranked = sorted(judged, key=lambda each: each.null_score)
    score = best = float(sum(not each.has_answer for each in judged))
    threshold = math.nextafter(ranked[0].null_score, -math.inf)
    for each, following in zip(ranked, [*ranked[1:], None], strict=True):
        score += each.marks.f1 if each.has_answer else -float(each.has_text)
        is_last_of_equals = following is None or following.null_score != each.null_score
        if is_last_of_equals and score > best:
            best, above = score, following.null_score if following else each.null_score + 2.0
            threshold = (each.null_score + above) / 2
    return threshold


def _best_mark(prediction: str, answers: Iterable[str], both_empty: float) -> Marks:
    found = normalize_answer(prediction)
    pairs = [(found, normalize_answer(answer)) for answer in answers]
    return Marks(
        max(float(found == expected) for found, expected in pairs),
        max(_word_f1(found.split(), expected.split(), both_empty) for found, expected in pairs),
    )


def _word_f1(found: Sequence[str], expected: Sequence[str], both_empty: float) -> float:
    if not found and not expected:
        return both_empty
    num_same = (Counter(found) & Counter(expected)).total()
    return 2 * num_same / (len(found) + len(expected))
