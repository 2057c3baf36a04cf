"""Precision, recall and F1 of entities as conlleval and seqeval count them.

An entity is right if its type and both its borders are. What is divided by nothing is 0.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trainer.conll.tags import find_entities

Tags = Sequence[str]
"""The tags of one sentence."""


class Score(NamedTuple):
    """Right ones of the predicted entities, right ones of the true ones, and the harmonic mean."""

    precision: float
    recall: float
    f1: float
    num_true: int


def score_entities(
    labels: Sequence[Tags], predictions: Sequence[Tags]
) -> tuple[Score, dict[str, Score]]:
    """The score of all entities together, and each type's by name."""
    num_true, num_predicted, num_right = Counter[str](), Counter[str](), Counter[str]()
    for label, prediction in zip(labels, predictions, strict=True):
        true, predicted = set(find_entities(label)), set(find_entities(prediction))
        num_true.update(entity.type for entity in true)
        num_predicted.update(entity.type for entity in predicted)
        num_right.update(entity.type for entity in true & predicted)
    counts = (num_right, num_predicted, num_true)
    by_type = {
        name: _score_counts(*(each[name] for each in counts))
        for name in sorted(num_true | num_predicted)
    }
    return _score_counts(*(each.total() for each in counts)), by_type


def tag_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Share of words whose tag is right."""
    sentences = zip(labels, predictions, strict=True)
    pairs = [pair for each in sentences for pair in zip(*each, strict=True)]
    return _divide(sum(label == prediction for label, prediction in pairs), len(pairs))


def _score_counts(num_right: int, num_predicted: int, num_true: int) -> Score:
    precision, recall = _divide(num_right, num_predicted), _divide(num_right, num_true)
    return Score(precision, recall, _divide(2 * num_right, num_predicted + num_true), num_true)


def _divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
