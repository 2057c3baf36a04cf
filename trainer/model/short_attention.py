"""Attention for short packed sequences, with dropout, as kernels of Triton; off until a GPU has shown that it wins.

Shapes: B sequences, T packed tokens, A heads, D head size, Q queries and K keys of a tile.
FlashAttention-2 (Dao 2023) over a tile for each sequence and head. Up to 128 tokens a sequence is one tile, and one
pass backward makes all three gradients. No sum is made by atomic operations, so runs repeat to the bit. The mask of
dropout is not stored: backward draws it again from its counter by Philox (Salmon et al. 2011). Four neighbouring keys
share a counter, which gives four numbers; one counter for each would cost more than the products.
"""

# Arguments of kernels are Triton's own, pointers and tiles; their names carry the shapes.
# ruff: noqa: ANN001, ANN202, ARG001
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
LARGEST_TILE = 128
_LN2 = tl.constexpr(math.log(2))


class ShortAttention(torch.autograd.Function):
    """softmax(q k / sqrt(D)) v in each sequence [T, A, D], the probabilities dropped out."""

    @staticmethod
    def forward(
        ctx: Any,
        q_TAD: Tensor,
        k_TAD: Tensor,
        v_TAD: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        dropout_p: float,
        is_causal: bool,
    ) -> Tensor:
        """The context; see trainer.model.attention for the arguments."""
        _, num_heads, head_size = q_TAD.shape
        if head_size not in HEAD_SIZES:
            raise ValueError(
                f"attention_backend triton wants a head size of {HEAD_SIZES}, found {head_size}; choose another "
                "num_heads, or attention_backend auto"
            )
        q_TAD, k_TAD, v_TAD = (each if each.stride()[1:] == (head_size, 1) else each.contiguous()
                               for each in (q_TAD, k_TAD, v_TAD))  # fmt: skip
        context_TAD = q_TAD.new_empty(q_TAD.shape)
        log_sums_TA = q_TAD.new_empty(q_TAD.shape[:2], dtype=torch.float32)
        seed = torch.randint(1 << 62, (1,), device=q_TAD.device)  # read on the device: the host waits for nothing
        ctx.launch = launch_settings(num_heads, head_size, max_seqlen, dropout_p, is_causal)
        ctx.grid = (len(cu_seqlens) - 1, num_heads, -(-max_seqlen // ctx.launch["TILE"]))
        saved = (q_TAD, k_TAD, v_TAD, context_TAD, log_sums_TA, cu_seqlens, seed)
        ctx.save_for_backward(*saved)
        _forward_kernel[ctx.grid](*saved, *(each.stride(0) for each in saved[:3]), **ctx.launch)
        return context_TAD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the three."""
        saved = ctx.saved_tensors
        made = [each.new_empty(each.shape) for each in saved[:3]]
        strides = (each.stride(0) for each in saved[:3])
        _backward_kernel[ctx.grid](*saved, *strides, gradients[0].contiguous(), *made, **ctx.launch)
        return (*made, None, None, None, None)


def launch_settings(
    num_heads: int, head_size: int, max_seqlen: int, dropout_p: float, is_causal: bool
) -> dict[str, Any]:
    """What both kernels are started with, but tensors and their strides."""
    tile = min(LARGEST_TILE, max(16, triton.next_power_of_2(max_seqlen)))
    return {
        "scale": 1 / (math.sqrt(head_size) * math.log(2)),  # exp2 is what the device has
        "counters_of_a_row": -(-max_seqlen // tile) * tile // 4,
        "threshold": int(dropout_p * 2**32) - 2**31,
        "kept_scale": 1 / (1 - dropout_p),
        "HAS_DROPOUT": dropout_p > 0.0,
        "IS_CAUSAL": is_causal,
        "IS_ONE_TILE": max_seqlen <= tile,
        "NUM_HEADS": num_heads,
        "HEAD_SIZE": head_size,
        "TILE": tile,
        "num_warps": 8 if tile == LARGEST_TILE else 4,
    }


@triton.jit
def _forward_kernel(
    q, k, v, context, log_sums, borders, seed, q_stride, k_stride, v_stride,
    scale, counters_of_a_row, threshold, kept_scale,
    HAS_DROPOUT: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_ONE_TILE: tl.constexpr,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Context of one tile of queries, and the logarithm of the sum under its softmax, base 2."""
    head = tl.program_id(1)
    start = tl.load(borders + tl.program_id(0))
    length = tl.load(borders + tl.program_id(0) + 1) - start
    query_Q = tl.program_id(2) * TILE + tl.arange(0, TILE)
    if tl.program_id(2) * TILE < length:
        q_QD = _load(q, start, query_Q, length, head, q_stride, HEAD_SIZE)
        most_Q = tl.full((TILE,), float("-inf"), tl.float32)
        sum_Q = tl.zeros((TILE,), tl.float32)
        context_QD = tl.zeros((TILE, HEAD_SIZE), tl.float32)
        for first in range(0, length, TILE):
            key_K = first + tl.arange(0, TILE)
            k_KD = _load(k, start, key_K, length, head, k_stride, HEAD_SIZE)
            v_KD = _load(v, start, key_K, length, head, v_stride, HEAD_SIZE)
            scores_QK = _scores(q_QD, k_KD, query_Q, key_K, length, scale, IS_CAUSAL)
            higher_Q = tl.maximum(most_Q, tl.max(scores_QK, 1))
            weights_QK = tl.exp2(scores_QK - higher_Q[:, None])
            fading_Q = tl.exp2(most_Q - higher_Q)
            sum_Q = sum_Q * fading_Q + tl.sum(weights_QK, 1)  # of all: what is dropped still divides
            if HAS_DROPOUT:
                kept_QK = _kept(seed, (start + query_Q) * NUM_HEADS + head, first, counters_of_a_row, threshold, TILE)
                weights_QK = tl.where(kept_QK, weights_QK * kept_scale, 0.0)
            context_QD = context_QD * fading_Q[:, None] + tl.dot(weights_QK.to(v_KD.dtype), v_KD)
            most_Q = higher_Q
        _store(context, context_QD / sum_Q[:, None], start, query_Q, length, head, NUM_HEADS, HEAD_SIZE)
        places_Q = (start + query_Q) * NUM_HEADS + head
        tl.store(log_sums + places_Q, most_Q + tl.log2(sum_Q), mask=query_Q < length)


@triton.jit
def _backward_kernel(
    q, k, v, context, log_sums, borders, seed, q_stride, k_stride, v_stride, d_context, d_q, d_k, d_v,
    scale, counters_of_a_row, threshold, kept_scale,
    HAS_DROPOUT: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_ONE_TILE: tl.constexpr,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Gradients of one tile of keys and values; of its queries in the same pass, or in a second one over all keys."""
    head = tl.program_id(1)
    start = tl.load(borders + tl.program_id(0))
    length = tl.load(borders + tl.program_id(0) + 1) - start
    mine = tl.program_id(2) * TILE + tl.arange(0, TILE)
    if tl.program_id(2) * TILE < length:
        k_KD = _load(k, start, mine, length, head, k_stride, HEAD_SIZE)
        v_KD = _load(v, start, mine, length, head, v_stride, HEAD_SIZE)
        d_k_KD = tl.zeros((TILE, HEAD_SIZE), tl.float32)
        d_v_KD = tl.zeros((TILE, HEAD_SIZE), tl.float32)
        for first in range(0, length, TILE):
            query_Q = first + tl.arange(0, TILE)
            q_QD = _load(q, start, query_Q, length, head, q_stride, HEAD_SIZE)
            d_context_QD = _load(d_context, start, query_Q, length, head, NUM_HEADS * HEAD_SIZE, HEAD_SIZE)
            weights_QK, d_scores_QK = _d_scores(
                q_QD, k_KD, v_KD, context, log_sums, d_context_QD, seed, start, query_Q, mine,
                tl.program_id(2) * TILE, length, head, scale, counters_of_a_row, threshold, kept_scale,
                HAS_DROPOUT, IS_CAUSAL, NUM_HEADS, HEAD_SIZE, TILE,
            )  # fmt: skip
            d_v_KD += tl.dot(tl.trans(weights_QK.to(q_QD.dtype)), d_context_QD)
            d_k_KD += tl.dot(tl.trans(d_scores_QK.to(q_QD.dtype)), q_QD)
            if IS_ONE_TILE:
                d_q_QD = tl.dot(d_scores_QK.to(q_QD.dtype), k_KD) * (scale * _LN2)
                _store(d_q, d_q_QD, start, query_Q, length, head, NUM_HEADS, HEAD_SIZE)
        _store(d_k, d_k_KD * (scale * _LN2), start, mine, length, head, NUM_HEADS, HEAD_SIZE)
        _store(d_v, d_v_KD, start, mine, length, head, NUM_HEADS, HEAD_SIZE)
        if not IS_ONE_TILE:
            q_QD = _load(q, start, mine, length, head, q_stride, HEAD_SIZE)
            d_context_QD = _load(d_context, start, mine, length, head, NUM_HEADS * HEAD_SIZE, HEAD_SIZE)
            d_q_QD = tl.zeros((TILE, HEAD_SIZE), tl.float32)
            for first in range(0, length, TILE):
                key_K = first + tl.arange(0, TILE)
                k_KD = _load(k, start, key_K, length, head, k_stride, HEAD_SIZE)
                v_KD = _load(v, start, key_K, length, head, v_stride, HEAD_SIZE)
                weights_QK, d_scores_QK = _d_scores(
                    q_QD, k_KD, v_KD, context, log_sums, d_context_QD, seed, start, mine, key_K,
                    first, length, head, scale, counters_of_a_row, threshold, kept_scale,
                    HAS_DROPOUT, IS_CAUSAL, NUM_HEADS, HEAD_SIZE, TILE,
                )  # fmt: skip
                d_q_QD += tl.dot(d_scores_QK.to(q_QD.dtype), k_KD)
            _store(d_q, d_q_QD * (scale * _LN2), start, mine, length, head, NUM_HEADS, HEAD_SIZE)


@triton.jit
def _d_scores(
    q_QD, k_KD, v_KD, context, log_sums, d_context_QD, seed, start, query_Q, key_K,
    first_key, length, head, scale, counters_of_a_row, threshold, kept_scale,
    HAS_DROPOUT: tl.constexpr, IS_CAUSAL: tl.constexpr,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The probabilities after dropout, and the gradient of the scores, of one tile [Q, K]."""
    row_Q = (start + query_Q) * NUM_HEADS + head
    scores_QK = _scores(q_QD, k_KD, query_Q, key_K, length, scale, IS_CAUSAL)
    log_sum_Q = tl.load(log_sums + row_Q, mask=query_Q < length, other=0.0)
    weights_QK = tl.exp2(scores_QK - log_sum_Q[:, None])
    d_weights_QK = tl.dot(d_context_QD, tl.trans(v_KD))
    kept_weights_QK = weights_QK
    if HAS_DROPOUT:
        kept_QK = _kept(seed, row_Q, first_key, counters_of_a_row, threshold, TILE)
        kept_weights_QK = tl.where(kept_QK, weights_QK * kept_scale, 0.0)
        d_weights_QK = tl.where(kept_QK, d_weights_QK * kept_scale, 0.0)
    # The sum over keys of probability times gradient is context times gradient, with dropout too.
    context_QD = _load(context, start, query_Q, length, head, NUM_HEADS * HEAD_SIZE, HEAD_SIZE)
    mean_Q = tl.sum(context_QD.to(tl.float32) * d_context_QD.to(tl.float32), 1)
    return kept_weights_QK, weights_QK * (d_weights_QK - mean_Q[:, None])


@triton.jit
def _scores(q_QD, k_KD, query_Q, key_K, length, scale, IS_CAUSAL: tl.constexpr):
    """Scores in base 2; minus infinity where a query does not look."""
    is_seen = key_K[None, :] < length
    if IS_CAUSAL:
        is_seen = is_seen & (key_K[None, :] <= query_Q[:, None])
    return tl.where(is_seen, tl.dot(q_QD, tl.trans(k_KD)) * scale, float("-inf"))


@triton.jit
def _kept(seed, row_Q, first_key, counters_of_a_row, threshold, TILE: tl.constexpr):
    """Which probabilities of a tile [Q, K] dropout keeps: the same in both directions, whatever the tiles."""
    counter_QC = row_Q[:, None] * counters_of_a_row + (first_key // 4 + tl.arange(0, TILE // 4))[None, :]
    a, b, c, d = tl.randint4x(tl.load(seed), counter_QC)
    draws_QK = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (TILE, TILE))
    return draws_QK.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def _load(pointer, start, index_N, length, head, stride, HEAD_SIZE: tl.constexpr):
    """Rows of one head and sequence [N, D], zeros past its end."""
    place_ND = (start + index_N).to(tl.int64)[:, None] * stride + head * HEAD_SIZE + tl.arange(0, HEAD_SIZE)[None, :]
    return tl.load(pointer + place_ND, mask=index_N[:, None] < length, other=0.0)


@triton.jit
def _store(pointer, rows_ND, start, index_N, length, head, NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """Writes rows of one head and sequence, in the type of the pointer."""
    row_N = (start + index_N).to(tl.int64) * NUM_HEADS + head
    place_ND = row_N[:, None] * HEAD_SIZE + tl.arange(0, HEAD_SIZE)[None, :]
    tl.store(pointer + place_ND, rows_ND.to(pointer.dtype.element_ty), mask=index_N[:, None] < length)
