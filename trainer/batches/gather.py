"""Rows of many blocks brought together into one block.

N rows gathered, R runs of rows, K blocks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block
from trainer.batches.rows import HostMemory, gather_lists, gather_values

_LISTS = {
    "input_ids": "offsets",
    "masked_lm_positions": "masked_offsets",
    "masked_lm_ids": "masked_offsets",
}
"""Columns of lists, and the offsets of each."""

_FLAT = ("segment_a_length", "is_random_next", "document_a", "document_b")


def gather_rows(
    blocks: Sequence[Block],
    which: Array,
    starts: Array,
    stops: Array,
    memory: HostMemory | None = None,
) -> Block:
    """Rows starts to stops - 1 of blocks, one run after another.

    The blocks are laid side by side first, so that what a step takes of hundreds of them, often one
    row of each, is gathered by one call a column.

    Args:
        blocks: [K], with tokens of one width.
        which: [R] the block of each run.
        starts: [R] its first row.
        stops: [R] one past its last.
        memory: Where the rows are put.

    Returns:
        A block that shares nothing with the others; it lies in a piece of `memory`.
    """
    before = np.cumsum([0, *(block.num_instances for block in blocks)])
    first, last = before[which] + starts, before[which] + stops
    num_rows = int((stops - starts).sum())
    flat = {name: np.concatenate([getattr(each, name) for each in blocks]) for name in _FLAT}
    lists = {name: _join_lists(blocks, name, offsets) for name, offsets in _LISTS.items()}
    columns: dict[str, tuple[int, Any]] = {
        name: (num_rows, column.dtype) for name, column in flat.items()
    }
    columns |= dict.fromkeys(("offsets", "masked_offsets"), (num_rows + 1, np.int32))
    columns |= {
        name: (int((ends[last] - ends[first]).sum()), values.dtype)
        for name, (ends, values) in lists.items()
    }
    taken = (memory or HostMemory()).take(list(columns.values()))
    into = dict(zip(columns, taken, strict=True))
    for name, (ends, values) in lists.items():
        gather_lists(first, last, ends * values.itemsize, values, (into[_LISTS[name]], into[name]))
    for name, column in flat.items():
        gather_values(first, last, column, into[name])
    return Block(**into)


def _join_lists(blocks: Sequence[Block], name: str, offsets: str) -> tuple[Array, Array]:
    """Offsets [N+1] int64 and values of a column of lists over all blocks."""
    counts = [np.diff(getattr(block, offsets)) for block in blocks]
    values = np.concatenate([getattr(block, name) for block in blocks])
    return np.concatenate([[0], np.cumsum(np.concatenate(counts), dtype=np.int64)]), values
