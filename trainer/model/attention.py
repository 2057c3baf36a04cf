"""Self-attention over packed sequences: three back ends behind one function.

Shapes: B sequences, T packed tokens, S length, A heads, D head size, P positions of the padded
buffer.

| back end | runs on               | attention dropout | how
|----------|-----------------------|-------------------|-----------------------------------------
| padded   | any device, any dtype | yes               | pad, scaled_dot_product_attention, unpad
| varlen   | CUDA, fp16 and bf16   | must be 0         | torch.nn.attention.varlen
| flash    | CUDA, fp16 and bf16   | yes               | varlen's kernel, by aten's function

"auto" stands for varlen without dropout, flash with it, and padded where neither can run.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    """Lays the sequences out as padded rows, grouped by length.

    Short ones are not padded to the longest. Reads the lengths back to the host: one
    synchronisation a micro-batch on a GPU.
    """
    starts_B1 = cu_seqlens.cpu().long()
    lengths_B = starts_B1.diff()
    row_lengths_B = ((lengths_B + row_step - 1) // row_step * row_step).clamp(
        max=int(lengths_B.max())
    )
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
        is_full = bool((lengths == row_length).all())
        mask_BS = torch.arange(row_length) < lengths[:, None]
        mask = None if is_full else mask_BS[:, None, None, :].to(device)
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

    Args:
        q_TAD: queries.
        k_TAD: keys.
        v_TAD: values.
        sequences: borders of the sequences.
        dropout_p: dropout of the attention probabilities in this call, 0 outside training.
        backend: see the table above.
        is_causal: whether a token sees no later ones.

    Raises:
        ValueError: the back end cannot run on this device or dtype, or cannot drop out.
    """
    if q_TAD.shape[0] == 0:
        # Empty, and connected to all three: backward must reach every parameter.
        return q_TAD + k_TAD + v_TAD
    chosen = choose_backend(backend, q_TAD.device, q_TAD.dtype, dropout_p)
    if chosen == "varlen":
        return _varlen_attention(q_TAD, k_TAD, v_TAD, sequences, is_causal)
    if chosen == "flash":
        return _flash_attention(q_TAD, k_TAD, v_TAD, sequences, dropout_p, is_causal)
    return _padded_attention(q_TAD, k_TAD, v_TAD, sequences.padded, dropout_p, is_causal)


def choose_backend(backend: str, device: torch.device, dtype: torch.dtype, dropout_p: float) -> str:
    """The back end that will run.

    That is `backend` itself after checking that it can, or what "auto" stands for.

    Raises:
        ValueError: the back end cannot run on this device or dtype, or cannot drop out; says what
            to choose.
    """
    has_kernel = _has_flash_kernel(device, dtype)
    if backend == "auto":
        return ("flash" if dropout_p > 0.0 else "varlen") if has_kernel else "padded"
    if backend == "padded":
        return backend
    if not has_kernel:
        raise ValueError(
            f"attention_backend {backend} needs fp16 or bf16 on a CUDA device of compute capability 8.0 or later, "
            f"found {dtype} on {device}; choose attention_backend padded or auto"
        )
    if backend == "varlen" and dropout_p > 0.0:
        raise ValueError(
            f"attention_backend varlen cannot drop out, attention_dropout is {dropout_p}; "
            "choose attention_backend flash or auto, or set attention_dropout to 0"
        )
    return backend


def _has_flash_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _padded_attention(
    q_TAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    layout: PaddedLayout,
    dropout_p: float,
    is_causal: bool,
) -> Tensor:
    q_PAD, k_PAD, v_PAD = (_pad(x_TAD, layout) for x_TAD in (q_TAD, k_TAD, v_TAD))
    contexts = [
        _group_attention(q_PAD, k_PAD, v_PAD, group, dropout_p, is_causal)
        for group in layout.groups
    ]
    context_PAD = torch.cat(contexts)
    return context_PAD.index_select(0, layout.positions)


def _pad(x_TAD: Tensor, layout: PaddedLayout) -> Tensor:
    buffer_PAD = x_TAD.new_zeros(layout.num_positions, *x_TAD.shape[1:])
    return buffer_PAD.index_copy(0, layout.positions, x_TAD)


# Not cuDNN's, which Hopper prefers: it makes a plan for every new shape, and groups have a new one
# each time.
_SDPA_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _group_attention(
    q_PAD: Tensor,
    k_PAD: Tensor,
    v_PAD: Tensor,
    group: PaddedGroup,
    dropout_p: float,
    is_causal: bool,
) -> Tensor:
    """Attention of one group of rows, flat again: [num_rows * row_length, A, D]."""
    stop = group.start + group.num_rows * group.row_length
    q_BASD, k_BASD, v_BASD = (
        x_PAD[group.start : stop]
        .view(group.num_rows, group.row_length, *x_PAD.shape[1:])
        .transpose(1, 2)
        for x_PAD in (q_PAD, k_PAD, v_PAD)
    )
    # Padding comes last in a row, where no real token looks when none looks ahead.
    mask = None if is_causal else group.key_mask
    with sdpa_kernel(_SDPA_KERNELS):
        context_BASD = F.scaled_dot_product_attention(
            q_BASD, k_BASD, v_BASD, mask, dropout_p, is_causal
        )
    return context_BASD.transpose(1, 2).flatten(0, 1)


def _varlen_attention(
    q_TAD: Tensor, k_TAD: Tensor, v_TAD: Tensor, sequences: PackedSequences, is_causal: bool
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # absent before torch 2.10

    borders, length = sequences.cu_seqlens, sequences.max_seqlen
    context_TAD = varlen_attn(
        q_TAD, k_TAD, v_TAD, borders, borders, length, length, **_varlen_causality(is_causal)
    )
    assert isinstance(context_TAD, Tensor), "more than the context comes only when asked for"
    return context_TAD


@cache
def _varlen_causality(is_causal: bool) -> dict[str, Any]:
    """How varlen_attn is told: torch 2.10 has a flag, later ones a window of -1 (all) and 0 (none)."""
    from torch.nn.attention.varlen import varlen_attn

    if not is_causal:
        return {}
    has_flag = "is_causal" in signature(varlen_attn).parameters
    return {"is_causal": True} if has_flag else {"window_size": (-1, 0)}


def _flash_attention(
    q_TAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    sequences: PackedSequences,
    dropout_p: float,
    is_causal: bool,
) -> Tensor:
    """The kernel under varlen_attn, whose Python wrapper alone fixes dropout at 0."""
    borders, length = sequences.cu_seqlens, sequences.max_seqlen
    of_sequences = (borders, borders, length, length)
    context_TAD: Tensor
    context_TAD, *_ = torch.ops.aten._flash_attention_forward(
        q_TAD, k_TAD, v_TAD, *of_sequences, dropout_p, is_causal, return_debug_mask=False
    )
    return context_TAD
