"""How often each document of a source is used in a pass.

A weight w uses a document floor(u + w (p + 1)) - floor(u + w p) times in pass p, u in [0, 1) coming
from its id: over P passes w P times, up to one, spread evenly over passes and documents.
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
    """What word counts are multiplied by: the smallest whole numbers in the ratio of the weights.

    Weights are taken to the thousandth, at least one, so that sums over any sample are exact where
    the learner adds.
    """
    thousandths = [max(1, (weight * 1000 + UNIT // 2) // UNIT) for weight in weights]
    return [each // gcd(*thousandths) for each in thousandths]


def choose_uses(
    ids: Sequence[bytes],
    sources: npt.NDArray[np.uint8],
    weights: Sequence[int],
    seed: int,
    pass_index: int,
) -> tuple[list[int], list[int]]:
    """A document's row for each use of a pass, and how many uses of it came before.

    `sources` [D] holds the documents' sources, by which `weights`, in millionths, are looked up.
    """
    pairs = zip(ids, sources.tolist(), strict=True)
    uses = np.array([count_uses(weights[s], pass_index, seed, i) for i, s in pairs], np.int64)
    rows = np.repeat(np.arange(len(ids)), uses)
    before = np.arange(len(rows)) - np.repeat(np.cumsum(uses) - uses, uses)
    return rows.tolist(), before.tolist()


def apply_weights(
    weights: Sequence[int], documents: Sequence[int], cleaned_bytes: Sequence[int]
) -> tuple[int, int]:
    """Bytes of text that buckets are planned from, of each document once at least; its documents.

    All arguments are by the source's number; no weights stand for using each document once.
    """
    weights = weights or [UNIT] * len(documents)
    used_bytes = sum(max(w, UNIT) * size for w, size in zip(weights, cleaned_bytes, strict=True))
    used = sum(min(w, UNIT) * number for w, number in zip(weights, documents, strict=True))
    return used_bytes // UNIT, used // UNIT


def count_uses(weight: int, pass_index: int, seed: int, document: bytes) -> int:
    """How often a document is used in a pass, by its source's weight in millionths."""
    whole, rest = divmod(weight, UNIT)
    if not rest:
        return whole
    start = (seed_for(seed, _PURPOSE, 0, document.hex()) & ((1 << _START_BITS) - 1)) * UNIT
    end, begin = (start + (weight * each << _START_BITS) for each in (pass_index + 1, pass_index))
    return end // (UNIT << _START_BITS) - begin // (UNIT << _START_BITS)
