"""Decides how often each document of a source is used in a pass.

Each source has a weight w, which is the mean number of times that a pass uses one of its documents.
Pass number p uses a document floor(u + w (p + 1)) - floor(u + w p) times. Here u in [0, 1) is a
hash of the document's id. Over P passes a document is used w P times, rounded up or down, and the
uses are spread evenly over passes and documents.
"""

from collections.abc import Sequence
from math import gcd

import numpy as np
import numpy.typing as npt

from pipeline.documents.source import UNIT
from pipeline.seeds import seed_for

_PURPOSE = "uses"
_START_BITS = 32


def count_factors(weights: Sequence[int]) -> list[int]:
    """Returns the factor by which the word counts of each source are multiplied.

    The vocabulary is learned from the counts of all sources together, and a source counts by its
    weight. The factors are the smallest whole numbers that have the ratio of the weights, so the
    sums of counts are exact. Weights are rounded to thousandths before; a smaller weight counts as
    one thousandth.

    Args:
        weights: The weight of each source in millionths.
    """
    thousandths = [max(1, (weight * 1000 + UNIT // 2) // UNIT) for weight in weights]
    return [number // gcd(*thousandths) for number in thousandths]


def choose_uses(
    ids: Sequence[bytes],
    sources: npt.NDArray[np.uint8],
    weights: Sequence[int],
    seed: int,
    pass_index: int,
) -> tuple[list[int], list[int]]:
    """Lists all uses of documents in one pass, by the rule at the top of this file.

    A document of a source with weight 2.5 is used two or three times. A document of a source with
    weight 0.5 is used once or not at all.

    Args:
        ids: The ids of D documents.
        sources: [D] the number of each document's source.
        weights: The weight of each source in millionths, by the source's number.
        seed: The seed of the build.
        pass_index: The number of the pass, from 0.

    Returns:
        Two lists with one entry for each use, in the order of `ids`: the index of the document in
        `ids`, and the number of earlier uses of the same document in this pass.
    """
    uses = np.array(
        [
            count_uses(weights[source], pass_index, seed, document)
            for document, source in zip(ids, sources.tolist(), strict=True)
        ],
        np.int64,
    )
    rows = np.repeat(np.arange(len(ids)), uses)
    num_before = np.arange(len(rows)) - np.repeat(np.cumsum(uses) - uses, uses)
    return rows.tolist(), num_before.tolist()


def apply_weights(
    weights: Sequence[int], documents: Sequence[int], cleaned_bytes: Sequence[int]
) -> tuple[int, int]:
    """Returns how much text and how many documents one pass has, to plan its buckets.

    A bucket is the documents whose instances one train shard holds.

    Args:
        weights: The weight of each source in millionths; empty if each document is used once.
        documents: The number of documents of each source.
        cleaned_bytes: The bytes of cleaned text of each source.

    Returns:
        The bytes of cleaned text in a pass, and the number of distinct documents that a pass uses.
        The bytes count a document once even if its source has a weight below 1.
    """
    weights = weights or [UNIT] * len(documents)
    used_bytes = sum(max(w, UNIT) * size for w, size in zip(weights, cleaned_bytes, strict=True))
    num_used = sum(min(w, UNIT) * number for w, number in zip(weights, documents, strict=True))
    return used_bytes // UNIT, num_used // UNIT


def count_uses(weight: int, pass_index: int, seed: int, document: bytes) -> int:
    """Returns how often a document is used in a pass, by the rule at the top of this file.

    Args:
        weight: The weight of the document's source in millionths.
        pass_index: The number of the pass, from 0.
        seed: The seed of the build.
        document: The id of the document.
    """
    whole, rest = divmod(weight, UNIT)
    if not rest:
        return whole
    start = (seed_for(seed, _PURPOSE, 0, document.hex()) & ((1 << _START_BITS) - 1)) * UNIT
    begin = start + (weight * pass_index << _START_BITS)
    end = start + (weight * (pass_index + 1) << _START_BITS)
    return end // (UNIT << _START_BITS) - begin // (UNIT << _START_BITS)
