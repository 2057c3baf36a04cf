"""Encoded texts as the model's packed inputs.

B sequences, T tokens.
"""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor


class PackedInputs(TypedDict):
    """What `BertModel.encode` and `.hidden_states` take by name."""

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int


def pack_sequences(
    sequences: Sequence[Sequence[int]], device: torch.device, token_types: Sequence[Sequence[int]] | None = None
) -> PackedInputs:
    """Sequences one after another without padding.

    Args:
        sequences: Ids of each, [CLS] and [SEP] included.
        device: Where the tensors lie.
        token_types: 0 or 1 for each id; 0 everywhere where it is left out.
    """
    lengths = torch.tensor([len(each) for each in sequences])
    cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    cu_seqlens[1:] = lengths.cumsum(0)
    input_ids_T = _join(sequences)
    types_T = torch.zeros_like(input_ids_T) if token_types is None else _join(token_types)
    positions_T = torch.arange(len(input_ids_T)) - cu_seqlens[:-1].long().repeat_interleave(lengths)
    return PackedInputs(
        input_ids=input_ids_T.to(device),
        token_type_ids=types_T.to(device),
        position_ids=positions_T.to(device),
        cu_seqlens=cu_seqlens.to(device),
        max_seqlen=int(lengths.max()),
    )


def _join(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row])
