"""Computes the metrics of classification and regression from their definitions.

Every function takes the predictions, `found`, and the labels, `expected`, of the same N examples.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np


def accuracy(found: Sequence[str], expected: Sequence[str]) -> float:
    """Returns the share of examples whose class was predicted right."""
    return sum(a == b for a, b in zip(found, expected, strict=True)) / len(expected)


def f1(found: Sequence[str], expected: Sequence[str], label: str) -> float:
    """Returns the harmonic mean of precision and recall of one class.

    It is 0 if no prediction and no label is of this class.
    """
    hits = sum(a == b == label for a, b in zip(found, expected, strict=True))
    total = sum(a == label for a in found) + sum(b == label for b in expected)
    return 2 * hits / total if total else 0.0


def macro_f1(found: Sequence[str], expected: Sequence[str]) -> float:
    """Returns the mean of F1 over all classes that are predicted or are labels."""
    labels = sorted({*found, *expected})
    return sum(f1(found, expected, label) for label in labels) / len(labels)


def matthews(found: Sequence[str], expected: Sequence[str]) -> float:
    """Returns the Matthews correlation for any number of classes (Gorodkin 2004).

    It is between -1 and 1, and 0 if all predictions, or all labels, are of one class.

    Args:
        found: The predicted classes.
        expected: The right class of each prediction.
    """
    labels = np.array(sorted({*found, *expected}))
    found_is_label = np.array(found)[:, None] == labels
    expected_is_label = np.array(expected)[:, None] == labels
    return pearson(found_is_label, expected_is_label)


def pearson(found: Any, expected: Any) -> float:
    """Returns Pearson's linear correlation of two arrays [N] or [N, columns].

    For arrays of several columns, the covariance is the sum of the covariances of columns with the
    same index. The variance of an array is the sum of the variances of its columns. The result is 0
    if one of the arrays is constant.
    """
    x = np.asarray(found, dtype=np.float64)
    y = np.asarray(expected, dtype=np.float64)
    x = x - x.mean(axis=0)
    y = y - y.mean(axis=0)
    spread = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / spread if spread > 0 else 0.0


def spearman(found: Sequence[float], expected: Sequence[float]) -> float:
    """Returns the Pearson correlation of ranks. Equal values share the mean of their ranks."""

    def rank(values: Sequence[float]) -> Any:
        _, inverse_N, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse_N]

    return pearson(rank(found), rank(expected))


def mean_squared_error(found: Sequence[float], expected: Sequence[float]) -> float:
    """Returns the mean of the squared differences between predictions and labels."""
    return float(np.mean((np.array(found, dtype=np.float64) - np.array(expected)) ** 2))


METRICS: Mapping[str, Callable[[Any, Any], float]] = {
    "accuracy": accuracy,
    "f1": partial(f1, label="1"),
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "mean_squared_error": mean_squared_error,
}
"""The metrics of `PairTask`: by name, a function of the predictions and the labels of a file.

"f1" is that of the class "1", as in GLUE. Which metrics a task has is said in
`trainer.finetune.table.HEADS_AND_METRICS` and in `trainer.finetune.glue.LAYOUTS`.
"""
