"""Attention for short packed sequences, with dropout, as kernels of Triton; off until a GPU has shown that it wins.

Shapes: B sequences, T packed tokens, A heads, D head size, Q queries and K keys of a tile, N
either, R and C counters of dropout (a half of Q and of K). FlashAttention-2 (Dao 2023). Forward, a
program has 64 queries of one head and sequence. Backward it has the whole
sequence: up to 128 queries stay in place while few keys at a time pass, so that scores and
gradients fit in registers. Both loop over the keys that there are. No sum is made by atomic
operations, so runs repeat to the bit. The mask of dropout is not stored: backward draws it again
from its counter by Philox with 7 rounds, which pass all of BigCrush (Salmon et al. 2011). A counter
has four numbers, for two queries and two keys that are 8 apart. Those are in one thread of the
device's products, so that no draw changes threads.
"""

# Arguments of kernels are Triton's own, pointers and tiles; their names carry the shapes.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

HEAD_SIZES = (16, 32, 64, 128)
_LN2 = tl.constexpr(math.log(2))
_ROUNDS = tl.constexpr(7)


class ShortAttention(torch.autograd.Function):
    """softmax(q k / sqrt(D)) v in each sequence [T, A, D], the probabilities dropped out.

    Queries, keys and values are three tensors [T, A, D], or one [T, 3, A, D]: its gradient is made
    in one piece.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cu_seqlens: Tensor,
        max_seqlen: int,
        dropout_p: float,
        is_causal: bool,
        *products: Tensor,
    ) -> Tensor:
        """The context; see trainer.model.attention for the arguments."""
        num_heads, head_size = products[0].shape[-2:]
        if head_size not in HEAD_SIZES:
            raise ValueError(
                f"attention_backend triton wants a head size of {HEAD_SIZES}, found {head_size}; choose another "
                "num_heads, or attention_backend auto"
            )
        dense = [
            each if each.stride()[1:] == (head_size, 1) else each.contiguous()
            for each in _three(products)
        ]
        context_TAD = dense[0].new_empty(dense[0].shape)
        log_sums_TA = context_TAD.new_empty(context_TAD.shape[:2], dtype=torch.float32)
        # Read on the device: the host waits for nothing.
        seed = torch.randint(
            -(1 << 31), 1 << 31, (2,), dtype=torch.int32, device=context_TAD.device
        )
        ctx.settings = (num_heads, head_size, max_seqlen, dropout_p, is_causal)
        ctx.shapes = [each.shape for each in products]
        saved = (*dense, context_TAD, log_sums_TA, cu_seqlens, seed)
        ctx.save_for_backward(*saved)
        launch = forward_launch(*ctx.settings)
        grid = (triton.cdiv(max_seqlen, launch["TILE_Q"]), num_heads, len(cu_seqlens) - 1)
        _forward_kernel[grid](*saved, *(each.stride(0) for each in dense), **launch)
        return context_TAD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the products."""
        saved, launch = ctx.saved_tensors, backward_launch(*ctx.settings)
        _, _, _, context_TAD, _, cu_seqlens, _ = saved
        products = [context_TAD.new_empty(shape) for shape in ctx.shapes]
        made = _three(products)
        sums = made[1:]
        if not launch["IS_ONE_TILE"]:
            sums = tuple(context_TAD.new_empty((2, *context_TAD.shape), dtype=torch.float32))
        strides = [each.stride(0) for each in (*saved[:3], made[0])]
        grid = (context_TAD.shape[1], len(cu_seqlens) - 1)
        _backward_kernel[grid](*saved, *strides, gradients[0].contiguous(), *made, *sums, **launch)
        return (None, None, None, None, *products)


def _three(products: Sequence[Tensor]) -> Sequence[Tensor]:
    """Queries, keys and values, or their gradients [T, A, D]."""
    return products if len(products) == 3 else products[0].unbind(1)


def forward_launch(
    num_heads: int, head_size: int, max_seqlen: int, dropout_p: float, is_causal: bool
) -> dict[str, Any]:
    """What the kernel forward is started with, but tensors and their strides."""
    tile = min(64, max(16, triton.next_power_of_2(max_seqlen)))
    numbers = _numbers(num_heads, head_size, max_seqlen, dropout_p, is_causal)
    return numbers | {"TILE_Q": tile, "TILE_K": tile, "num_warps": 4, "num_stages": 2}


def backward_launch(
    num_heads: int, head_size: int, max_seqlen: int, dropout_p: float, is_causal: bool
) -> dict[str, Any]:
    """The same backward; what fits into 128 registers a thread is held to them, as two programs share a processor."""
    tile = min(128, max(16, triton.next_power_of_2(max_seqlen)))
    numbers = _numbers(num_heads, head_size, max_seqlen, dropout_p, is_causal)
    is_one_tile = max_seqlen <= tile
    tiles = {"TILE_Q": tile, "TILE_K": min(32, tile), "IS_ONE_TILE": is_one_tile}
    registers = {"maxnreg": 128} if head_size == 64 and is_one_tile and not is_causal else {}
    return numbers | tiles | registers | {"num_warps": 8 if tile == 128 else 4, "num_stages": 1}


def _numbers(
    num_heads: int, head_size: int, max_seqlen: int, dropout_p: float, is_causal: bool
) -> dict[str, Any]:
    return {
        "scale": 1 / (math.sqrt(head_size) * math.log(2)),  # exp2 is what the device has
        "counters_of_a_row": triton.cdiv(max_seqlen, 32) * 16,
        "threshold": int(dropout_p * 2**32) - 2**31,
        "kept_scale": 1 / (1 - dropout_p),
        "HAS_DROPOUT": dropout_p > 0.0,
        "IS_CAUSAL": is_causal,
        "NUM_HEADS": num_heads,
        "HEAD_SIZE": head_size,
    }


@triton.jit
def _forward_kernel(
    q, k, v, context, log_sums, borders, seed, q_stride, k_stride, v_stride,
    scale, counters_of_a_row, threshold, kept_scale,
    HAS_DROPOUT: tl.constexpr, IS_CAUSAL: tl.constexpr,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """Context of one tile of queries, and the logarithm of the sum under its softmax, base 2."""
    first_query = tl.program_id(0) * TILE_Q
    head = tl.program_id(1)
    start = tl.load(borders + tl.program_id(2))
    length = tl.load(borders + tl.program_id(2) + 1) - start
    if first_query < length:
        query_Q = first_query + tl.arange(0, TILE_Q)
        q_QD = _load(q, start, query_Q, length, head, q_stride, HEAD_SIZE)
        most_Q = tl.full((TILE_Q,), float("-inf"), tl.float32)
        sum_Q = tl.zeros((TILE_Q,), tl.float32)
        context_QD = tl.zeros((TILE_Q, HEAD_SIZE), tl.float32)
        for first_key in range(0, length, TILE_K):
            key_K = first_key + tl.arange(0, TILE_K)
            k_KD = _load(k, start, key_K, length, head, k_stride, HEAD_SIZE)
            v_KD = _load(v, start, key_K, length, head, v_stride, HEAD_SIZE)
            scores_QK = tl.dot(q_QD, tl.trans(k_KD))
            scores_QK = tl.where(
                _is_seen(query_Q, key_K, length, IS_CAUSAL), scores_QK, float("-inf")
            )
            higher_Q = tl.maximum(most_Q, tl.max(scores_QK, 1) * scale)
            weights_QK = tl.exp2(scores_QK * scale - higher_Q[:, None])
            fading_Q = tl.exp2(most_Q - higher_Q)
            sum_Q = sum_Q * fading_Q + tl.sum(
                weights_QK, 1
            )  # of all: what is dropped still divides
            if HAS_DROPOUT:
                row_R = _row_of_counters(start, first_query, head, NUM_HEADS, TILE_Q)
                kept_QK = _kept(
                    seed, row_R, first_key, counters_of_a_row, threshold, TILE_Q, TILE_K
                )
                weights_QK = tl.where(kept_QK, weights_QK, 0.0)
            context_QD = context_QD * fading_Q[:, None] + tl.dot(weights_QK.to(v_KD.dtype), v_KD)
            most_Q = higher_Q
        context_QD = context_QD * (kept_scale / sum_Q)[:, None]
        _store(context, context_QD, start, query_Q, length, head, NUM_HEADS * HEAD_SIZE, HEAD_SIZE)
        places_Q = (start + query_Q) * NUM_HEADS + head
        tl.store(log_sums + places_Q, most_Q + tl.log2(sum_Q), mask=query_Q < length)


@triton.jit
def _backward_kernel(
    q, k, v, context, log_sums, borders, seed, q_stride, k_stride, v_stride, d_stride,
    d_context, d_q, d_k, d_v, k_sums, v_sums,
    scale, counters_of_a_row, threshold, kept_scale,
    HAS_DROPOUT: tl.constexpr, IS_CAUSAL: tl.constexpr, IS_ONE_TILE: tl.constexpr,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """All gradients of one head and sequence; those of keys and values are summed over the tiles of queries."""
    head = tl.program_id(0)
    start = tl.load(borders + tl.program_id(1))
    length = tl.load(borders + tl.program_id(1) + 1) - start
    stride = NUM_HEADS * HEAD_SIZE
    for first_query in range(0, TILE_Q if IS_ONE_TILE else length, TILE_Q):
        query_Q = first_query + tl.arange(0, TILE_Q)
        row_R = _row_of_counters(start, first_query, head, NUM_HEADS, TILE_Q)
        context_QD = _load(context, start, query_Q, length, head, stride, HEAD_SIZE)
        d_context_QD = _load(d_context, start, query_Q, length, head, stride, HEAD_SIZE)
        # The sum over keys of probability times gradient is context times gradient, with dropout
        # too.
        mean_Q = tl.sum(context_QD.to(tl.float32) * d_context_QD.to(tl.float32), 1)
        log_sum_Q = tl.load(
            log_sums + (start + query_Q) * NUM_HEADS + head, mask=query_Q < length, other=0.0
        )
        q_QD = _load(q, start, query_Q, length, head, q_stride, HEAD_SIZE)
        d_q_QD = tl.zeros((TILE_Q, HEAD_SIZE), tl.float32)
        for first_key in range(0, length, TILE_K):
            key_K = first_key + tl.arange(0, TILE_K)
            k_KD = _load(k, start, key_K, length, head, k_stride, HEAD_SIZE)
            v_KD = _load(v, start, key_K, length, head, v_stride, HEAD_SIZE)
            weights_QK = tl.exp2(tl.dot(q_QD, tl.trans(k_KD)) * scale - log_sum_Q[:, None])
            weights_QK = tl.where(_is_seen(query_Q, key_K, length, IS_CAUSAL), weights_QK, 0.0)
            kept_weights_QK = weights_QK
            if HAS_DROPOUT:
                kept_QK = _kept(
                    seed, row_R, first_key, counters_of_a_row, threshold, TILE_Q, TILE_K
                )
                kept_weights_QK = tl.where(kept_QK, weights_QK, 0.0)
            d_v_KD = (
                tl.trans(tl.dot(tl.trans(d_context_QD), kept_weights_QK.to(q_QD.dtype)))
                * kept_scale
            )
            _add(
                d_v,
                v_sums,
                d_v_KD,
                first_query,
                start,
                key_K,
                length,
                head,
                d_stride,
                stride,
                HEAD_SIZE,
                IS_ONE_TILE,
            )
            d_weights_QK = tl.dot(d_context_QD, tl.trans(v_KD))
            if HAS_DROPOUT:
                d_weights_QK = tl.where(kept_QK, d_weights_QK, 0.0)
            d_scores_QK = (weights_QK * (d_weights_QK * kept_scale - mean_Q[:, None])).to(
                q_QD.dtype
            )
            d_q_QD += tl.dot(d_scores_QK, k_KD)
            d_k_KD = tl.trans(tl.dot(tl.trans(q_QD), d_scores_QK)) * (scale * _LN2)
            _add(
                d_k,
                k_sums,
                d_k_KD,
                first_query,
                start,
                key_K,
                length,
                head,
                d_stride,
                stride,
                HEAD_SIZE,
                IS_ONE_TILE,
            )
        _store(d_q, d_q_QD * (scale * _LN2), start, query_Q, length, head, d_stride, HEAD_SIZE)
        if not IS_ONE_TILE:
            tl.debug_barrier()  # the sums that this tile wrote are read by the next


@triton.jit
def _is_seen(query_Q, key_K, length, IS_CAUSAL: tl.constexpr):
    """Whether a query looks at a key [Q, K]."""
    is_seen = key_K[None, :] < length
    if IS_CAUSAL:
        is_seen = is_seen & (key_K[None, :] <= query_Q[:, None])
    return is_seen


@triton.jit
def _row_of_counters(start, first_query, head, NUM_HEADS: tl.constexpr, TILE_Q: tl.constexpr):
    """Numbers [R] of the pairs of queries of a tile, none of them another sequence's."""
    return (start + first_query // 2 + tl.arange(0, TILE_Q // 2)) * NUM_HEADS + head


@triton.jit
def _kept(
    seed, row_R, first_key, counters_of_a_row, threshold, TILE_Q: tl.constexpr, TILE_K: tl.constexpr
):
    """Which probabilities of a tile [Q, K] dropout keeps: the same in both directions, whatever the tiles."""
    counter_RC = (
        row_R[:, None] * counters_of_a_row + (first_key // 2 + tl.arange(0, TILE_K // 2))[None, :]
    )
    # The seed counts too, under a key that is constant: keys of all rounds would take registers.
    a, b, c, d = tl.philox(0, counter_RC, tl.load(seed), tl.load(seed + 1), 0, _ROUNDS)
    blocks = tl.reshape(
        tl.join(tl.join(a, c), tl.join(b, d)), (TILE_Q // 16, 8, TILE_K // 16, 8, 2, 2)
    )
    draws_QK = tl.reshape(tl.permute(blocks, (0, 4, 1, 2, 5, 3)), (TILE_Q, TILE_K))
    return draws_QK.to(tl.int32, bitcast=True) >= threshold


@triton.jit
def _load(pointer, start, index_N, length, head, stride, HEAD_SIZE: tl.constexpr):
    """Rows of one head and sequence [N, D], zeros past its end."""
    pointer += start.to(tl.int64) * stride + head * HEAD_SIZE
    place_ND = index_N[:, None] * stride + tl.arange(0, HEAD_SIZE)[None, :]
    return tl.load(pointer + place_ND, mask=index_N[:, None] < length, other=0.0)


@triton.jit
def _store(pointer, rows_ND, start, index_N, length, head, stride, HEAD_SIZE: tl.constexpr):
    """Writes rows of one head and sequence, in the type of the pointer."""
    pointer += start.to(tl.int64) * stride + head * HEAD_SIZE
    place_ND = index_N[:, None] * stride + tl.arange(0, HEAD_SIZE)[None, :]
    tl.store(
        pointer + place_ND, rows_ND.to(pointer.dtype.element_ty), mask=index_N[:, None] < length
    )


@triton.jit
def _add(
    pointer, sums, rows_ND, first_query, start, index_N, length, head, stride, sums_stride,
    HEAD_SIZE: tl.constexpr, IS_ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Writes rows, with those that the tiles of queries before made; fp32 keeps the sum for the next one."""
    if not IS_ONE_TILE:
        rows_ND += _load(
            sums, start, index_N, tl.where(first_query > 0, length, 0), head, sums_stride, HEAD_SIZE
        )
        _store(sums, rows_ND, start, index_N, length, head, sums_stride, HEAD_SIZE)
    _store(pointer, rows_ND, start, index_N, length, head, stride, HEAD_SIZE)
