"""Computes accuracies on minimal pairs: over all pairs, in each group, and the mean over groups.

Pairs are grouped by columns of their file. In BLiMP the column linguistics_term has 12 phenomena,
the coarse groups, and the column UID has the paradigms of each phenomenon, the fine groups.

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
"""Scores that differ by no more than this are taken as equal, because float32 is not more exact."""


def is_right(good: NDArray[np.float64], bad: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns for each pair [P] whether its good sentence has the higher score. A tie is wrong.

    Args:
        good: Scores of the good sentences [P], in nats.
        bad: Scores of the bad sentences [P], in nats.
    """
    return good - bad > TIE_NATS


def count_ties(good: NDArray[np.float64], bad: NDArray[np.float64]) -> int:
    """Returns the number of pairs whose two sentences have equal scores. They count as wrong.

    Args:
        good: Scores of the good sentences [P], in nats.
        bad: Scores of the bad sentences [P], in nats.
    """
    return int(np.count_nonzero(np.abs(good - bad) <= TIE_NATS))


@dataclass(frozen=True)
class Accuracy:
    """The number of right pairs in a group.

    Attributes:
        group: The values that all pairs of the group have in the first columns, beginning with the
            coarsest: ("island_effects",) is a coarse group, and a tuple of two values is one of the
            finer groups in it. The tuple is empty for all pairs.
        pairs: The number of pairs in the group.
        right: The number of pairs in the group that the model gets right.
    """

    group: tuple[str, ...]
    pairs: int
    right: int

    @property
    def accuracy(self) -> float:
        """Returns the share of right pairs."""
        return self.right / self.pairs

    @property
    def standard_error(self) -> float:
        """Returns the standard error of the share, by the binomial distribution."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.pairs)


@dataclass(frozen=True)
class PairAccuracies:
    """Accuracies on a set of pairs.

    Attributes:
        columns: The columns that pairs are grouped by, the coarsest first.
        total: The accuracy on all pairs.
        groups: The accuracies of the groups of every column, in alphabetical order. A group comes
            directly before the finer groups in it.
        ties: The number of pairs whose sentences have equal scores; they are not right.
    """

    columns: tuple[str, ...]
    total: Accuracy
    groups: list[Accuracy]
    ties: int = 0

    @property
    def coarsest(self) -> list[Accuracy]:
        """Returns the accuracies of the groups of the first column.

        If there are no columns, all pairs form one group.
        """
        return [group for group in self.groups if len(group.group) == 1] or [self.total]

    @property
    def mean(self) -> float:
        """Returns the mean accuracy of the coarsest groups, not weighted by their sizes."""
        return sum(group.accuracy for group in self.coarsest) / len(self.coarsest)

    @property
    def standard_error_of_mean(self) -> float:
        """Returns the standard error of `mean`; groups are taken as independent."""
        squares = sum(group.standard_error**2 for group in self.coarsest)
        return math.sqrt(squares) / len(self.coarsest)

    def to_dict(self) -> dict[str, Any]:
        """Returns all numbers for JSON: first those of all pairs, then a list of groups."""
        groups = [
            {
                **dict(zip(self.columns, group.group, strict=False)),
                "pairs": group.pairs,
                "accuracy": group.accuracy,
                "standard_error": group.standard_error,
            }
            for group in self.groups
        ]
        return {
            "num_pairs": self.total.pairs,
            "accuracy": self.total.accuracy,
            "standard_error": self.total.standard_error,
            "ties": self.ties,
            "mean_of": self.columns[0] if self.columns else None,
            "mean_accuracy": self.mean,
            "standard_error_of_mean": self.standard_error_of_mean,
            "groups": groups,
        }


def summarize(pair_set: PairSet, right: NDArray[np.bool_]) -> PairAccuracies:
    """Computes the accuracies of a model on a set of pairs and on each of its groups.

    Pairs with the same value in the first column form a group. Those of them that also have the
    same value in the second column form a finer group in it, and so on.

    Args:
        pair_set: The pairs and the columns to group them by.
        right: [P], whether the model gets each pair right, such as the result of `is_right`.
    """
    counts: dict[tuple[str, ...], list[int]] = {}
    for pair, hit in zip(pair_set.pairs, right.tolist(), strict=True):
        for depth in range(len(pair.groups) + 1):
            count = counts.setdefault(pair.groups[:depth], [0, 0])
            count[0] += 1
            count[1] += hit
    # The empty tuple, the group of all pairs, sorts first.
    total, *groups = (Accuracy(group, *count) for group, count in sorted(counts.items()))
    return PairAccuracies(pair_set.columns, total, groups)


def format_accuracies(found: PairAccuracies) -> str:
    """Returns a table in percent to be printed. Its last row is for all pairs."""
    rows = list(_rows(found))
    head = " / ".join(found.columns)
    width = max(len(head), *(len(name) for name, *_ in rows))
    lines = [f"{head:<{width}}  {'pairs':>7}  accuracy  std. error"] if found.columns else []
    for name, pairs, accuracy, error in rows:
        lines.append(f"{name:<{width}}  {pairs:>7,}  {accuracy:>8.2%}  {error:>10.2%}")
    return "\n".join(lines)


def _rows(found: PairAccuracies) -> Iterator[tuple[str, int, float, float]]:
    """Yields the rows of the table of `format_accuracies`.

    Each row is a name, the number of pairs, the accuracy and the standard error of the accuracy.
    The rows are those of the groups, of the mean over the coarsest groups, and of all pairs.
    """
    for group in found.groups:
        name = "  " * (len(group.group) - 1) + group.group[-1]
        yield name, group.pairs, group.accuracy, group.standard_error
    total = found.total
    if found.columns:
        name = describe_mean(found)
        yield name, total.pairs, found.mean, found.standard_error_of_mean
    yield "all pairs", total.pairs, total.accuracy, total.standard_error


def describe_mean(found: PairAccuracies) -> str:
    """Returns the name of the mean over groups, such as "mean of 12 linguistics_term"."""
    return f"mean of {len(found.coarsest)} {found.columns[0]}" if found.columns else "all pairs"
