"""Accuracies on minimal pairs: in all, by group, and as the mean of groups.

Shapes: P pairs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.minimal_pairs.read import PairSet

TIE_NATS = 1e-4
"""Sums that differ by no more are equal: float32 does not tell them apart."""


def is_right(good: NDArray[np.float64], bad: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Says of each pair [P] whether the good sentence has the higher sum; a tie is wrong."""
    return good - bad > TIE_NATS


@dataclass(frozen=True)
class Accuracy:
    """How many pairs of a group are right.

    Attributes:
        group: The group's value in each column down to its own; empty for all pairs.
        pairs: How many pairs the group has.
        right: How many of them are right.
    """

    group: tuple[str, ...]
    pairs: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of right pairs."""
        return self.right / self.pairs

    @property
    def standard_error(self) -> float:
        """The standard error of the share, by the binomial distribution."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.pairs)


@dataclass(frozen=True)
class PairAccuracies:
    """Accuracies on a set of pairs.

    Attributes:
        columns: The columns that pairs are grouped by, the coarsest first.
        total: All pairs, of whatever group.
        groups: Every group of every column in order of names; a group comes before its parts.
    """

    columns: tuple[str, ...]
    total: Accuracy
    groups: list[Accuracy]

    @property
    def coarsest(self) -> list[Accuracy]:
        """The groups of the first column; all pairs as one where there is no column."""
        return [each for each in self.groups if len(each.group) == 1] or [self.total]

    @property
    def mean(self) -> float:
        """The mean accuracy of the coarsest groups, whatever their sizes."""
        return sum(each.accuracy for each in self.coarsest) / len(self.coarsest)

    @property
    def standard_error_of_mean(self) -> float:
        """The standard error of `mean`, the groups being independent."""
        squares = sum(each.standard_error**2 for each in self.coarsest)
        return math.sqrt(squares) / len(self.coarsest)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON has it: numbers in all first, then a list of groups."""
        groups = [
            {
                **dict(zip(self.columns, each.group, strict=False)),
                "pairs": each.pairs,
                "accuracy": each.accuracy,
                "standard_error": each.standard_error,
            }
            for each in self.groups
        ]
        return {
            "num_pairs": self.total.pairs,
            "accuracy": self.total.accuracy,
            "standard_error": self.total.standard_error,
            "mean_of": self.columns[0] if self.columns else None,
            "mean_accuracy": self.mean,
            "standard_error_of_mean": self.standard_error_of_mean,
            "groups": groups,
        }


def summarize(pair_set: PairSet, right: NDArray[np.bool_]) -> PairAccuracies:
    """Counts right pairs in all and by each column, a finer column within the coarser ones."""
    counts: dict[tuple[str, ...], list[int]] = {}
    for pair, hit in zip(pair_set.pairs, right.tolist(), strict=True):
        for depth in range(len(pair.groups) + 1):
            count = counts.setdefault(pair.groups[:depth], [0, 0])
            count[0] += 1
            count[1] += hit
    total, *groups = (Accuracy(group, *count) for group, count in sorted(counts.items()))
    return PairAccuracies(pair_set.columns, total, groups)


def format_accuracies(found: PairAccuracies) -> str:
    """A table for people, in percent, with the numbers in all last."""
    rows = [*_rows(found)]
    head = " / ".join(found.columns)
    width = max(len(head), *(len(name) for name, *_ in rows))
    lines = [f"{head:<{width}}  {'pairs':>7}  accuracy  std. error"] if found.columns else []
    for name, pairs, accuracy, error in rows:
        lines.append(f"{name:<{width}}  {pairs:>7,}  {accuracy:>8.2%}  {error:>10.2%}")
    return "\n".join(lines)


def _rows(found: PairAccuracies) -> Iterator[tuple[str, int, float, float]]:
    for each in found.groups:
        name = "  " * (len(each.group) - 1) + each.group[-1]
        yield name, each.pairs, each.accuracy, each.standard_error
    total = found.total
    if found.columns:
        name = describe_mean(found)
        yield name, total.pairs, found.mean, found.standard_error_of_mean
    yield "all pairs", total.pairs, total.accuracy, total.standard_error


def describe_mean(found: PairAccuracies) -> str:
    """Names the mean, such as "mean of 12 linguistics_term"."""
    return f"mean of {len(found.coarsest)} {found.columns[0]}" if found.columns else "all pairs"
