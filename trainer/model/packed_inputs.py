"""What every model here reads: B sequences of T tokens one after another, without padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


@dataclass(frozen=True)
class PackedInputs:
    """Sequences one after another; without any, B = T = 0. Batches add to it what is predicted.

    Ids are [T] integers: token_type_ids 0 in [CLS] A [SEP] and 1 in B [SEP], position_ids counted
    inside each sequence. Sequence b begins at cu_seqlens[b] (int32); max_seqlen is any bound.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int


def pack_sequences(
    sequences: Sequence[ArrayLike],
    device: torch.device,
    segment_a_lengths: Sequence[int] | None = None,
) -> PackedInputs:
    """int32 inputs of ids with [CLS] and [SEP], and of the tokens of [CLS] A [SEP] in each."""
    rows = [np.asarray(each, np.int32) for each in sequences]
    lengths = np.array([len(each) for each in rows], np.int64)
    ends = np.cumsum(lengths)
    positions_T = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    in_a = lengths if segment_a_lengths is None else segment_a_lengths

    def move(column: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(column.astype(np.int32)).to(device, non_blocking=True)

    return PackedInputs(
        input_ids=move(np.concatenate([np.zeros(0, np.int32), *rows])),
        token_type_ids=move(positions_T >= np.repeat(in_a, lengths)),
        position_ids=move(positions_T),
        cu_seqlens=move(np.concatenate([[0], ends])),
        max_seqlen=int(lengths.max(initial=0)),
    )
