"""Rows of many blocks brought together: N rows in R runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block

_LISTS = (
    ("offsets", "lengths", ("input_ids",)),
    ("masked_offsets", "masked_lengths", ("masked_lm_positions", "masked_lm_ids")),
)
"""Offsets and lengths of lists, and the columns that they cut."""


def gather_rows(blocks: Sequence[Block], which: Array, starts: Array, stops: Array) -> Block:
    """Rows starts to stops - 1 [R] of blocks `which` [R], one run after another.

    Columns of numbers are laid side by side first, and gathered by one call each; of lists a run is
    one slice. Documents are left out, for no step holds them.
    """
    before = np.cumsum([0, *(block.num_instances for block in blocks)])
    first, last = before[which] + starts, before[which] + stops
    counts = stops - starts
    rows = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    found: dict[str, Array] = dict.fromkeys(("document_a", "document_b"), np.zeros(0, np.uint64))
    for name in ("segment_a_length", "is_random_next"):
        found[name] = np.concatenate([getattr(block, name) for block in blocks])[rows]
    for offsets, lengths, names in _LISTS:
        counts = np.concatenate([getattr(block, lengths) for block in blocks])
        ends = _ends(counts, np.int64)
        begins = ends[before[which]]
        runs = [each.tolist() for each in (which, ends[first] - begins, ends[last] - begins)]
        for name in names:
            values = [getattr(block, name) for block in blocks]
            slices = [values[block][start:stop] for block, start, stop in zip(*runs, strict=True)]
            found[name] = np.concatenate(slices)
        found[offsets] = _ends(counts[rows], np.int32)
    return Block(**found)


def _ends(lengths: Array, dtype: type[np.integer[Any]]) -> Array:
    """Offsets [N+1] of lists of some lengths [N]."""
    ends = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=ends[1:])
    return ends
