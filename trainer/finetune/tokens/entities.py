"""Precision, recall and F1 of entities as seqeval counts them.

An entity is right if its type and both its borders are. What is divided by nothing is 0.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from trainer.conll.tags import Entity, find_entities, keep_strict

Tags = Sequence[str]
"""The tags of one sentence."""


class Score(NamedTuple):
    """How well entities were found: right of the predicted, right of the true, and their mean.

    F1 is the harmonic mean; of the macro average, the mean of the types' F1.
    """

    precision: float
    recall: float
    f1: float
    num_true: int


class EntityScores(NamedTuple):
    """Scores of all entities together, plain means over the types, and each type's by name."""

    micro: Score
    macro: Score
    by_type: dict[str, Score]


def score_entities(
    labels: Sequence[Tags], predictions: Sequence[Tags], is_strict: bool = False
) -> EntityScores:
    """Scores by the entities that any tags spell (seqeval's default mode, conlleval).

    In seqeval's strict mode only well-formed entities count, of BIOES or else IOB2.
    """
    is_bioes = any(tag[0] in "ES" for tags in (*labels, *predictions) for tag in tags)

    def find(tags: Tags) -> set[Entity]:
        entities = find_entities(tags)
        return set(keep_strict(entities, tags, is_bioes) if is_strict else entities)

    num_true, num_predicted, num_right = Counter[str](), Counter[str](), Counter[str]()
    for label, prediction in zip(labels, predictions, strict=True):
        true, predicted = find(label), find(prediction)
        num_true.update(entity.type for entity in true)
        num_predicted.update(entity.type for entity in predicted)
        num_right.update(entity.type for entity in true & predicted)
    by_type = {
        name: _score_counts(num_right[name], num_predicted[name], num_true[name])
        for name in sorted(num_true | num_predicted)
    }
    means = [_divide(sum(each), len(by_type)) for each in zip(*by_type.values(), strict=True)]
    precision, recall, f1, _ = means or [0.0] * 4
    return EntityScores(
        _score_counts(num_right.total(), num_predicted.total(), num_true.total()),
        Score(precision, recall, f1, num_true.total()),
        by_type,
    )


def tag_accuracy(labels: Sequence[Tags], predictions: Sequence[Tags]) -> float:
    """Share of words whose tag is right."""
    sentences = zip(labels, predictions, strict=True)
    pairs = [pair for each in sentences for pair in zip(*each, strict=True)]
    return _divide(sum(label == prediction for label, prediction in pairs), len(pairs))


def _score_counts(num_right: int, num_predicted: int, num_true: int) -> Score:
    precision, recall = _divide(num_right, num_predicted), _divide(num_right, num_true)
    return Score(precision, recall, _divide(2 * precision * recall, precision + recall), num_true)


def _divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
