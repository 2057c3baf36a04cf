"""Gradients of biases and norms in the pass that makes the gradients under them; off until a GPU has shown it wins.

Shapes: T packed tokens, C columns (hidden or feed-forward size), N rows of a tile, K columns of a
tile, G programs. Autograd sums each gradient over all tokens in a kernel of its own, which reads it
all once more. Here the kernel that makes a gradient also sums its rows in fp32, a partial sum [C]
for each program; no sum is made by atomic operations, so runs repeat to the bit. What goes forward
is plain torch, for torch.compile to put together.
"""

# Arguments of kernels are Triton's own, pointers and tiles; their names carry the shapes.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

PROGRAM_ROWS = 128  # partial sums are then 1/64 of what is read
GELU_LAUNCH = {"PROGRAM_ROWS": PROGRAM_ROWS, "ROWS": 16, "COLUMNS": 128, "num_warps": 4}
_HALF_ROOT = tl.constexpr(math.sqrt(0.5))
_DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))


class GeluOfBiased(torch.autograd.Function):
    """gelu(x + bias) [T, C]; its backward pass makes both gradients at once."""

    @staticmethod
    def forward(ctx: Any, inputs_TC: Tensor, bias_C: Tensor) -> Tensor:
        """The exact gelu, of a product without its bias."""
        ctx.save_for_backward(inputs_TC, bias_C)
        return F.gelu(inputs_TC + bias_C)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of both."""
        inputs_TC, bias_C = ctx.saved_tensors
        num_rows, num_columns = inputs_TC.shape
        made_TC = torch.empty_like(inputs_TC)
        sums_GC = inputs_TC.new_empty(
            (triton.cdiv(num_rows, PROGRAM_ROWS), num_columns), dtype=torch.float32
        )
        grid = (sums_GC.shape[0], triton.cdiv(num_columns, GELU_LAUNCH["COLUMNS"]))
        _gelu_kernel[grid](
            gradients[0].contiguous(),
            inputs_TC,
            bias_C,
            made_TC,
            sums_GC,
            num_rows,
            num_columns,
            **GELU_LAUNCH,
        )
        return made_TC, sums_GC.sum(0).to(bias_C.dtype)


class NormOfSum(torch.autograd.Function):
    """LayerNorm(dropout(x + bias) + residual) [T, C]; its backward pass makes all five gradients at once."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs_TC: Tensor,
        bias_C: Tensor,
        residual_TC: Tensor,
        weight_C: Tensor,
        norm_bias_C: Tensor,
        dropout_ratio: tuple[int, int],
        eps_ratio: tuple[int, int],
    ) -> Tensor:
        """The normalised sum, of a product without its bias."""
        dropout_p, eps = dropout_ratio[0] / dropout_ratio[1], eps_ratio[0] / eps_ratio[1]
        dropped_TC, kept_TC = torch.ops.aten.native_dropout(inputs_TC + bias_C, dropout_p, True)
        sum_TC = dropped_TC + residual_TC
        normed_TC, mean_T, scale_T = torch.ops.aten.native_layer_norm(
            sum_TC, weight_C.shape, weight_C, norm_bias_C, eps
        )
        ctx.save_for_backward(sum_TC, kept_TC, mean_T, scale_T, weight_C)
        ctx.dropout_p = dropout_p
        made: Tensor = normed_TC
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the first five."""
        sum_TC, kept_TC, mean_T, scale_T, weight_C = ctx.saved_tensors
        num_rows, num_columns = sum_TC.shape
        made_TC, residual_TC = torch.empty_like(sum_TC), torch.empty_like(sum_TC)
        sums_G3C = sum_TC.new_empty(
            (triton.cdiv(num_rows, PROGRAM_ROWS), 3, num_columns), dtype=torch.float32
        )
        _norm_kernel[(sums_G3C.shape[0],)](
            gradients[0].contiguous(), sum_TC, kept_TC, mean_T, scale_T, weight_C, made_TC, residual_TC, sums_G3C,
            num_rows, num_columns, 1 / (1 - ctx.dropout_p), **norm_launch(num_columns),
        )  # fmt: skip
        bias_C, weight_gradient_C, norm_bias_C = sums_G3C.sum(0).to(weight_C.dtype).unbind(0)
        return made_TC, bias_C, residual_TC, weight_gradient_C, norm_bias_C, None, None


def norm_launch(num_columns: int) -> dict[str, int]:
    """What the kernel of whole rows is started with, but tensors and sizes."""
    return {
        "PROGRAM_ROWS": PROGRAM_ROWS,
        "ROWS": 2,
        "COLUMNS": triton.next_power_of_2(num_columns),
        "num_warps": 8,
    }


@triton.jit
def _gelu_kernel(
    gradient, inputs, bias, made, sums, num_rows, num_columns,
    PROGRAM_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient of the inputs for some rows and columns, and its sum over these rows."""
    column_K = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column_K = column_K < num_columns
    bias_K = tl.load(bias + column_K, mask=is_column_K, other=0.0).to(tl.float32)
    sum_K = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, PROGRAM_ROWS, ROWS):
        row_N = tl.program_id(0) * PROGRAM_ROWS + first + tl.arange(0, ROWS)
        place_NK = row_N.to(tl.int64)[:, None] * num_columns + column_K[None, :]
        is_in_NK = (row_N < num_rows)[:, None] & is_column_K[None, :]
        gradient_NK = tl.load(gradient + place_NK, mask=is_in_NK, other=0.0).to(tl.float32)
        x_NK = tl.load(inputs + place_NK, mask=is_in_NK, other=0.0).to(tl.float32) + bias_K[None, :]
        slope_NK = (
            0.5 * (1 + tl.erf(x_NK * _HALF_ROOT)) + x_NK * tl.exp(-0.5 * x_NK * x_NK) * _DENSITY
        )
        made_NK = gradient_NK * slope_NK
        tl.store(made + place_NK, made_NK.to(made.dtype.element_ty), mask=is_in_NK)
        sum_K += tl.sum(made_NK, 0)
    tl.store(sums + tl.program_id(0) * num_columns + column_K, sum_K, mask=is_column_K)


@triton.jit
def _norm_kernel(
    gradient, summed, kept, mean, scale, weight, made, residual, sums, num_rows, num_columns, kept_scale,
    PROGRAM_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of inputs and residual for some whole rows, and the sums for bias, weight and bias of the norm."""
    column_K = tl.arange(0, COLUMNS)
    is_column_K = column_K < num_columns
    weight_K = tl.load(weight + column_K, mask=is_column_K, other=0.0).to(tl.float32)
    bias_sum_K = tl.zeros((COLUMNS,), tl.float32)
    weight_sum_K = tl.zeros((COLUMNS,), tl.float32)
    norm_bias_sum_K = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, PROGRAM_ROWS, ROWS):
        row_N = tl.program_id(0) * PROGRAM_ROWS + first + tl.arange(0, ROWS)
        is_row_N = row_N < num_rows
        place_NK = row_N.to(tl.int64)[:, None] * num_columns + column_K[None, :]
        is_in_NK = is_row_N[:, None] & is_column_K[None, :]
        gradient_NK = tl.load(gradient + place_NK, mask=is_in_NK, other=0.0).to(tl.float32)
        summed_NK = tl.load(summed + place_NK, mask=is_in_NK, other=0.0).to(tl.float32)
        mean_N = tl.load(mean + row_N, mask=is_row_N, other=0.0).to(tl.float32)
        scale_N = tl.load(scale + row_N, mask=is_row_N, other=0.0).to(tl.float32)
        normed_NK = tl.where(is_in_NK, (summed_NK - mean_N[:, None]) * scale_N[:, None], 0.0)
        weighted_NK = gradient_NK * weight_K[None, :]
        along_N = tl.sum(weighted_NK * normed_NK, 1) / num_columns
        level_N = tl.sum(weighted_NK, 1) / num_columns
        residual_NK = (weighted_NK - normed_NK * along_N[:, None] - level_N[:, None]) * scale_N[
            :, None
        ]
        is_kept_NK = tl.load(kept + place_NK, mask=is_in_NK, other=0) != 0
        made_NK = tl.where(
            is_kept_NK, (residual_NK * kept_scale).to(tl.float32), 0.0
        )  # torch.compile gives fp64
        tl.store(residual + place_NK, residual_NK.to(residual.dtype.element_ty), mask=is_in_NK)
        tl.store(made + place_NK, made_NK.to(made.dtype.element_ty), mask=is_in_NK)
        bias_sum_K += tl.sum(made_NK, 0)
        weight_sum_K += tl.sum(gradient_NK * normed_NK, 0)
        norm_bias_sum_K += tl.sum(gradient_NK, 0)
    place_K = sums + tl.program_id(0) * 3 * num_columns + column_K
    tl.store(place_K, bias_sum_K, mask=is_column_K)
    tl.store(place_K + num_columns, weight_sum_K, mask=is_column_K)
    tl.store(place_K + 2 * num_columns, norm_bias_sum_K, mask=is_column_K)
