"""Self-attention over packed sequences: two back ends behind one function.

Shapes: B sequences, T packed tokens, S length, A heads, D head size, P positions of the padded
buffer.

| back end | runs on                                        | how
|----------|------------------------------------------------|---------------------------------------
| padded   | any device, any dtype                          | pad, scaled_dot_product_attention, unpad
| flash    | CUDA of capability 8.0 or later, fp16 and bf16 | the kernel under torch's varlen_attn

"auto" stands for flash where it can run. Both drop out.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows are padded to a multiple of this, and rows of one length run together. Attention forward and
# backward with dropout, 2 cores, lengths uniform in 10..512: 310 ms in one group, 119 by steps of
# 128, 102 by 32, 99 by 16.
ROW_STEP = 32


@dataclass(frozen=True)
class PaddedGroup:
    """Rows of one padded length, neighbours in the padded buffer."""

    start: int
    num_rows: int
    row_length: int
    key_mask: Tensor | None
    """bool [num_rows, 1, 1, row_length], False at padding; None when no row has any."""


@dataclass(frozen=True)
class PaddedLayout:
    """Where each packed token sits in a flat buffer [P] of padded rows, shorter rows first."""

    positions: Tensor
    """int64 [T], into P."""
    num_positions: int
    groups: tuple[PaddedGroup, ...]


@dataclass(frozen=True)
class PackedSequences:
    """Borders of the packed sequences of one micro-batch; made once, read by every layer."""

    cu_seqlens: Tensor
    """int32 [B+1]: sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1]."""
    max_seqlen: int

    @cached_property
    def padded(self) -> PaddedLayout:
        """The padded layout, computed when the first layer asks."""
        return padded_layout(self.cu_seqlens)


def padded_layout(cu_seqlens: Tensor, row_step: int = ROW_STEP) -> PaddedLayout:
    """Sequences as padded rows, grouped by length; on a GPU the host waits for it once."""
    starts_B1 = cu_seqlens.cpu().long()
    lengths_B = starts_B1.diff()
    rounded_B = (lengths_B + row_step - 1) // row_step * row_step
    row_lengths_B = rounded_B.clamp(max=int(lengths_B.max()))
    order_B = row_lengths_B.argsort(stable=True)
    row_starts_B = torch.empty_like(lengths_B)
    row_starts_B[order_B] = row_lengths_B[order_B].cumsum(0) - row_lengths_B[order_B]
    shift_T = torch.repeat_interleave(row_starts_B - starts_B1[:-1], lengths_B)
    position_T = torch.arange(int(starts_B1[-1])) + shift_T
    groups = _groups(row_lengths_B[order_B], lengths_B[order_B], cu_seqlens.device)
    return PaddedLayout(position_T.to(cu_seqlens.device), int(row_lengths_B.sum()), groups)


def _groups(
    row_lengths_B: Tensor, lengths_B: Tensor, device: torch.device
) -> tuple[PaddedGroup, ...]:
    """Runs of equal row length, in the order given."""
    groups, start = [], 0
    values, counts = torch.unique_consecutive(row_lengths_B, return_counts=True)
    lengths_of_groups = torch.split(lengths_B, counts.tolist())
    for row_length, lengths in zip(values.tolist(), lengths_of_groups, strict=True):
        mask_BS = torch.arange(row_length) < lengths[:, None]
        mask = None if mask_BS.all() else mask_BS[:, None, None, :].to(device)
        groups.append(PaddedGroup(start, len(lengths), row_length, mask))
        start += len(lengths) * row_length
    return tuple(groups)


def attention(
    q_TAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    sequences: PackedSequences,
    dropout_p: float,
    backend: str,
    is_causal: bool = False,
) -> Tensor:
    """Every token attends to the tokens of its own sequence: softmax(q k / sqrt(D)) v, [T, A, D].

    `dropout_p` is that of the probabilities, 0 outside training; a causal token sees no later ones.
    """
    if q_TAD.shape[0] == 0:
        # Empty, and connected to all three: backward must reach every parameter.
        return q_TAD + k_TAD + v_TAD
    if choose_backend(backend, q_TAD.device, q_TAD.dtype) == "padded":
        return _padded_attention(q_TAD, k_TAD, v_TAD, sequences.padded, dropout_p, is_causal)
    borders, length = sequences.cu_seqlens, sequences.max_seqlen
    of_sequences = (borders, borders, length, length)
    context_TAD: Tensor  # varlen_attn, the Python around this, fixes dropout at 0
    context_TAD, *_ = torch.ops.aten._flash_attention_forward(
        q_TAD, k_TAD, v_TAD, *of_sequences, dropout_p, is_causal, return_debug_mask=False
    )
    return context_TAD


def choose_backend(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    """The back end that will run: what "auto" stands for, or `backend` itself, if it can."""
    has_flash = (
        device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
    if backend == "flash" and not has_flash:
        raise ValueError(
            f"attention_backend {backend} needs fp16 or bf16 on a CUDA device of compute capability 8.0 or later, "
            f"found {dtype} on {device}; choose attention_backend padded or auto"
        )
    return "flash" if has_flash and backend != "padded" else "padded"


def _padded_attention(
    q_TAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    layout: PaddedLayout,
    dropout_p: float,
    is_causal: bool,
) -> Tensor:
    qkv_PAD = [_pad(x_TAD, layout) for x_TAD in (q_TAD, k_TAD, v_TAD)]
    contexts = [_group_attention(qkv_PAD, each, dropout_p, is_causal) for each in layout.groups]
    return torch.cat(contexts).index_select(0, layout.positions)


def _pad(x_TAD: Tensor, layout: PaddedLayout) -> Tensor:
    buffer_PAD = x_TAD.new_zeros(layout.num_positions, *x_TAD.shape[1:])
    return buffer_PAD.index_copy(0, layout.positions, x_TAD)


def _group_attention(
    qkv_PAD: list[Tensor], group: PaddedGroup, dropout_p: float, is_causal: bool
) -> Tensor:
    """Attention of one group of rows, flat again: [num_rows * row_length, A, D]."""
    rows, length = group.num_rows, group.row_length
    q_BASD, k_BASD, v_BASD = (
        x_PAD[group.start :][: rows * length].view(rows, length, *x_PAD.shape[1:]).transpose(1, 2)
        for x_PAD in qkv_PAD
    )
    # Padding comes last in a row, where no real token looks when none looks ahead.
    mask = None if is_causal else group.key_mask
    attend = F.scaled_dot_product_attention
    context_BASD = attend(q_BASD, k_BASD, v_BASD, mask, dropout_p, is_causal)
    return context_BASD.transpose(1, 2).flatten(0, 1)
