"""Chooses the rank that orthogonalises each matrix, for Muon under ZeRO-1 and 2.

This file imports no torch, so that `plan` can compute what Muon costs a run.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

STEPS = 5
"""Steps of Newton-Schulz that make a matrix nearly orthogonal."""


def is_muons(name: str, shape: Sequence[int]) -> bool:
    """Returns whether Muon updates a parameter, because it is a matrix of a layer.

    Args:
        name: Name of the parameter.
        shape: Its shape.
    """
    return ".layers." in name and len(shape) == 2


def orthogonalising_flops(shape: Sequence[int]) -> int:
    """Returns the floating-point operations that orthogonalise a matrix.

    Args:
        shape: The numbers of its rows and columns.
    """
    short = min(shape)
    long = max(shape)
    # A step makes two products with the matrix, and one of two square matrices.
    return STEPS * 2 * (2 * short * short * long + short**3)


def choose_owners(
    holders: Mapping[int, Sequence[int]], shapes: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """Returns the rank that orthogonalises each matrix, which is one that holds a part of it.

    The work is shared out evenly, as far as that allows: the most expensive matrix that several
    ranks hold is the first to be given to the one of them that has the least work so far. All ranks
    compute the same result from the same arguments.

    Args:
        holders: For each matrix, by its index among the parameters, the ranks that hold a part.
        shapes: The shape of each matrix, by the same indices.

    Returns:
        A rank for each index of `holders`.
    """
    costs = {index: orthogonalising_flops(shapes[index]) for index in holders}
    work = Counter[int]()
    owners: dict[int, int] = {}
    # Matrices that a single rank holds leave no choice, so they come first.
    for index in sorted(holders, key=lambda i: (len(holders[i]) > 1, -costs[i], i)):
        owner = min(holders[index], key=lambda rank: (work[rank], rank))
        owners[index] = owner
        work[owner] += costs[index]
    return owners
