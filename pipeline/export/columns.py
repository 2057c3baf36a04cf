"""The instances of a block as columns without padding, named as the features of run_pretraining.py."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.block import Block

Int32 = npt.NDArray[np.int32]


def list_columns(block: Block) -> dict[str, tuple[Int32, Int32]]:
    """The values of all instances by the name of their column, and where those of each instance start and end."""
    return {
        "input_ids": _column(block.input_ids, block.offsets),
        "segment_ids": _column(_segment_ids(block), block.offsets),
        "masked_lm_positions": _column(block.masked_lm_positions, block.masked_offsets),
        "masked_lm_ids": _column(block.masked_lm_ids, block.masked_offsets),
    }


def label_column(block: Block) -> Int32:
    """[N] 1 where B is not what follows A, else 0."""
    return block.is_random_next.astype(np.int32)


def _column(values: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> tuple[Int32, Int32]:
    return values.astype(np.int32), offsets.astype(np.int32)


def _segment_ids(block: Block) -> npt.NDArray[np.bool_]:
    """[T] whether a token is of segment B."""
    lengths = np.diff(block.offsets)
    first_of_b = np.repeat(block.offsets[:-1] + block.segment_a_length, lengths)
    return np.arange(block.num_tokens) >= first_of_b
