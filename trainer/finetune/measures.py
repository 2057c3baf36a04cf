"""The metrics of classification and regression, from their definitions. Shapes: N examples."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np


def accuracy(found: Sequence[str], expected: Sequence[str]) -> float:
    """Share of examples whose class is right."""
    return sum(a == b for a, b in zip(found, expected, strict=True)) / len(expected)


def f1(found: Sequence[str], expected: Sequence[str], label: str) -> float:
    """Harmonic mean of precision and recall of one class; 0 where neither side has it."""
    hits = sum(a == b == label for a, b in zip(found, expected, strict=True))
    total = sum(a == label for a in found) + sum(b == label for b in expected)
    return 2 * hits / total if total else 0.0


def macro_f1(found: Sequence[str], expected: Sequence[str]) -> float:
    """Mean of F1 over all classes that either side has."""
    labels = sorted({*found, *expected})
    return sum(f1(found, expected, label) for label in labels) / len(labels)


def matthews(found: Sequence[str], expected: Sequence[str]) -> float:
    """Matthews correlation of any classes (Gorodkin 2004); 0 where a side has one class."""
    labels = np.array(sorted({*found, *expected}))
    return pearson(*(np.array(each)[:, None] == labels for each in (found, expected)))


def pearson(found: Any, expected: Any) -> float:
    """Linear correlation; 0 where one side is constant. Columns of [N, ...] are added up."""
    x, y = (np.asarray(values, dtype=np.float64) for values in (found, expected))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    spread = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / spread if spread > 0 else 0.0


def spearman(found: Sequence[float], expected: Sequence[float]) -> float:
    """Pearson correlation of ranks; equal values share the mean of their ranks."""

    def rank(values: Sequence[float]) -> Any:
        _, inverse_N, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse_N]

    return pearson(rank(found), rank(expected))


def mean_squared_error(found: Sequence[float], expected: Sequence[float]) -> float:
    """Mean of squared differences."""
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
"""Metrics by name, of predictions and what is right; f1 is that of the class 1, as in GLUE."""
