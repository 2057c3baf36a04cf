"""What models read: B sequences of T tokens without padding, or in P places of padded rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

# Rows are padded to a multiple of this, and rows of one length run together. With lengths uniform
# in 10..512 attention takes a third of the time of one group.
ROW_STEP = 32


class PaddedGroup(NamedTuple):
    """Rows of one padded length, neighbours in the padded buffer."""

    start: int
    num_rows: int
    row_length: int
    key_mask: Tensor | None
    """bool [num_rows, 1, 1, row_length], False at padding; None when no row has any."""


class PaddedLayout(NamedTuple):
    """Where each packed token sits in a flat buffer [P] of padded rows, shorter rows first."""

    positions: Tensor
    """int64 [T], into P."""
    num_positions: int
    groups: list[PaddedGroup]


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

    @cached_property
    def padded(self) -> PaddedLayout:
        """The padded layout, computed when the first layer asks."""
        return padded_layout(self.cu_seqlens)


def padded_layout(cu_seqlens: Tensor, row_step: int = ROW_STEP) -> PaddedLayout:
    """Sequences as padded rows, grouped by length; on a GPU the host waits for it once."""
    device, starts_B1 = cu_seqlens.device, cu_seqlens.cpu().long()
    lengths_B = starts_B1.diff()
    rounded_B = (lengths_B + row_step - 1) // row_step * row_step
    row_lengths = rounded_B.clamp(max=int(lengths_B.max())).tolist()
    row_starts_B, groups, start = torch.empty_like(lengths_B), [], 0
    by_length = sorted(range(len(row_lengths)), key=row_lengths.__getitem__)
    for row_length, members in groupby(by_length, row_lengths.__getitem__):
        rows = torch.tensor(list(members))
        mask_BS = torch.arange(row_length) < lengths_B[rows, None]
        mask = None if mask_BS.all() else mask_BS[:, None, None, :].to(device)
        groups.append(PaddedGroup(start, len(rows), row_length, mask))
        row_starts_B[rows] = start + row_length * torch.arange(len(rows))
        start += len(rows) * row_length
    shift_T = torch.repeat_interleave(row_starts_B - starts_B1[:-1], lengths_B)
    return PaddedLayout((torch.arange(len(shift_T)) + shift_T).to(device), start, groups)


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
