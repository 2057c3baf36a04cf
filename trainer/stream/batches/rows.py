"""Gathers ranges of rows of many blocks into one block.

N gathered rows, R ranges.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block

_NUMBER_COLUMNS = ("segment_a_length", "is_random_next")
"""Columns with one number per instance."""

_LIST_COLUMNS = (
    ("offsets", "lengths", ("input_ids",)),
    ("masked_offsets", "masked_lengths", ("masked_lm_positions", "masked_lm_ids")),
)
"""Columns with one list per instance, with the names of their offsets and of their lengths."""


def gather_rows(blocks: Sequence[Block], which: Array, starts: Array, stops: Array) -> Block:
    """Returns rows of blocks, one range after another, as one block.

    The document columns of the result are empty: no step reads them.

    Args:
        blocks: The blocks to gather from.
        which: Index of the block of each range, int64 [R].
        starts: First row of each range in its block, int64 [R].
        stops: One past the last row of each range, int64 [R].
    """
    # Rows counted over all blocks, one block after another.
    block_starts = np.cumsum([0, *(block.num_instances for block in blocks)])
    first = block_starts[which] + starts
    last = block_starts[which] + stops
    num_rows = stops - starts
    range_starts = np.cumsum(num_rows) - num_rows
    rows_N = np.arange(num_rows.sum()) + np.repeat(first - range_starts, num_rows)

    no_documents = np.zeros(0, np.uint64)
    columns: dict[str, Array] = {"document_a": no_documents, "document_b": no_documents}
    # Numbers are picked row by row out of all blocks' columns; of lists a range is one slice.
    for name in _NUMBER_COLUMNS:
        columns[name] = np.concatenate([getattr(block, name) for block in blocks])[rows_N]
    for offsets_name, lengths_name, value_names in _LIST_COLUMNS:
        lengths = np.concatenate([getattr(block, lengths_name) for block in blocks])
        offsets = _offsets_of(lengths, np.int64)
        block_offsets = offsets[block_starts[which]]
        slice_starts = (offsets[first] - block_offsets).tolist()
        slice_stops = (offsets[last] - block_offsets).tolist()
        ranges = list(zip(which.tolist(), slice_starts, slice_stops, strict=True))
        for name in value_names:
            values = [getattr(block, name) for block in blocks]
            columns[name] = np.concatenate(
                [values[index][start:stop] for index, start, stop in ranges]
            )
        columns[offsets_name] = _offsets_of(lengths[rows_N], np.int32)
    return Block(**columns)


def _offsets_of(lengths: Array, dtype: type[np.integer[Any]]) -> Array:
    """Returns where each of N lists begins in their concatenation, and at the end where it ends.

    The result is an array of `dtype` [N+1].

    Args:
        lengths: Length of each list, integers [N].
        dtype: Type of the result.
    """
    offsets = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
