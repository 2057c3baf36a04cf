"""Exact match and F1 of answers, in percent, as SQuAD's official evaluators define them.

Both compare answers in lower case, without ASCII punctuation, articles and superfluous white space,
and take a question's best over all its answers. They differ where nothing of an answer is left: 2.0
does not count such answers, and its F1 of two empty texts is 1, which is 0 in 1.1.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Marks:
    """How good the answer to one question is.

    Attributes:
        exact: 1 if it is one of the right ones, else 0.
        f1: The best overlap of words with one of them, 0 to 1.
    """

    exact: float
    f1: float


@dataclass(frozen=True)
class Threshold:
    """The best that a threshold reaches.

    Attributes:
        score: The mean mark in percent.
        threshold: Questions whose score of no answer is above it are left unanswered.
    """

    score: float
    threshold: float


def normalize_answer(text: str) -> str:
    """What of an answer is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def mark_v1(prediction: str, answers: Sequence[str]) -> Marks:
    """Marks by the evaluator of SQuAD 1.1."""
    return _best([_compare(prediction, answer, both_empty=0.0) for answer in answers])


def mark_v2(prediction: str, answers: Sequence[str]) -> Marks:
    """Marks by the evaluator of SQuAD 2.0; without answers only the empty prediction is right."""
    counted = [answer for answer in answers if normalize_answer(answer)] or [""]
    return _best([_compare(prediction, answer, both_empty=1.0) for answer in counted])


def average(marks: Sequence[Marks]) -> dict[str, float]:
    """The means in percent, under the evaluators' names."""
    return {
        "exact": 100.0 * sum(each.exact for each in marks) / len(marks),
        "f1": 100.0 * sum(each.f1 for each in marks) / len(marks),
    }


def apply_threshold(
    marks: Mapping[str, Marks],
    null_scores: Mapping[str, float],
    has_answer: Mapping[str, bool],
    threshold: float,
) -> dict[str, Marks]:
    """Marks where questions whose score of no answer is above the threshold are left unanswered."""
    unanswered = {True: Marks(0.0, 0.0), False: Marks(1.0, 1.0)}
    return {
        key: unanswered[has_answer[key]] if null_scores[key] > threshold else each
        for key, each in marks.items()
    }


def find_best_threshold(
    marks: Mapping[str, float],
    texts: Mapping[str, str],
    null_scores: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> Threshold:
    """The threshold with the best mean mark, as the official evaluator looks for it.

    Unlike there the score is one that the threshold reaches: questions of equal null score are
    answered together, and where it is best to answer nothing the threshold lies below every null
    score.

    Args:
        marks: Exact match or F1 of each question's answer.
        texts: The answers.
        null_scores: How much more likely no answer is.
        has_answer: Whether there is a right answer.
    """
    keys = sorted(null_scores, key=lambda key: null_scores[key])
    score = best = float(sum(not has for has in has_answer.values()))
    threshold = math.nextafter(null_scores[keys[0]], -math.inf)
    for index, key in enumerate(keys):
        score += marks[key] if has_answer[key] else -float(bool(texts[key]))
        is_last_of_equals = (
            index + 1 == len(keys) or null_scores[keys[index + 1]] != null_scores[key]
        )
        if is_last_of_equals and score > best:
            best, threshold = score, null_scores[key]
    return Threshold(100.0 * best / len(keys), threshold)


def _compare(prediction: str, answer: str, both_empty: float) -> Marks:
    found, expected = normalize_answer(prediction), normalize_answer(answer)
    return Marks(float(found == expected), _word_f1(found.split(), expected.split(), both_empty))


def _word_f1(found: Sequence[str], expected: Sequence[str], both_empty: float) -> float:
    if not found and not expected:
        return both_empty
    num_same = (Counter(found) & Counter(expected)).total()
    if not num_same:
        return 0.0
    precision, recall = num_same / len(found), num_same / len(expected)
    return 2 * precision * recall / (precision + recall)


def _best(marks: Sequence[Marks]) -> Marks:
    return Marks(max(each.exact for each in marks), max(each.f1 for each in marks))


def halfway_above(threshold: float, null_scores: Iterable[float]) -> float:
    """A threshold halfway to the next null score: no score's last bit then decides a question."""
    above = [score for score in null_scores if score > threshold]
    return (threshold + min(above)) / 2 if above else threshold + 1.0
