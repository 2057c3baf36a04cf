"""Matrix products of a layer in FP8; off until a GPU has shown that they win.

Shapes: T packed tokens, K inputs and N outputs of a linear map.
Formats are those of Micikevicius et al. 2022: e4m3 for inputs and weights, e5m2 for gradients. A
tensor has one scale, with which its largest number becomes the largest of the format. The scale is
of the tensor itself and not of earlier
steps (delayed scaling): then there is no state to be saved or agreed on by ranks, and no number can
be too large. It is read no more often for that where a LayerNorm or gelu makes it, as a maximum by
rows is found where rows are made. Products are summed in fp32. A CPU computes the same numbers,
slowly.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.model.config import FP8_STEP

LEAST_CAPABILITY = (8, 9)  # of a GPU
_SMALLEST = 1e-30  # of a scale's largest number, so that a tensor of zeros has one


def check_device(device: torch.device) -> None:
    """Refuses a GPU without FP8.

    Raises:
        ValueError: Its compute capability is too low.
    """
    if (
        device.type == "cuda"
        and (found := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY
    ):
        raise ValueError(
            f"model.overrides.fp8 needs a GPU of compute capability {'.'.join(map(str, LEAST_CAPABILITY))} or later, "
            f"found {'.'.join(map(str, found))}; set it to false"
        )


class Fp8Product(torch.autograd.Function):
    """x w^T + b [T, N], and its gradients, by operands in FP8; results are of the type of x."""

    @staticmethod
    def forward(ctx: Any, inputs_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        """The product; its sums may be kept in fewer bits than fp32 on the way, as those of gradients may not."""
        small_TK, inputs_scale = quantize(inputs_TK, torch.float8_e4m3fn)
        small_NK, weight_scale = quantize(weight_NK, torch.float8_e4m3fn)
        ctx.save_for_backward(_turn(small_TK), inputs_scale, small_NK, weight_scale)
        product_TN = _multiply(
            small_TK, small_NK, inputs_scale, weight_scale, inputs_TK.dtype, bias_N, is_rough=True
        )
        ctx.has_bias = bias_N is not None
        return product_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of inputs, weight and bias."""
        small_KT, inputs_scale, small_NK, weight_scale = ctx.saved_tensors
        small_TN, scale = quantize(gradients[0], torch.float8_e5m2)
        dtype = gradients[0].dtype
        return (
            _multiply(small_TN, _turn(small_NK), scale, weight_scale, dtype),
            _multiply(_turn(small_TN), small_KT, scale, inputs_scale, dtype),
            gradients[0].sum(0) if ctx.has_bias else None,
        )


def allow_in_graphs() -> None:
    """Has torch.compile take the product as it is; imports the compiler.

    Dynamo of torch 2.13 fails on the second one of a graph, where lengths are symbolic.
    """
    torch.compiler.allow_in_graph(Fp8Product)  # type: ignore[no-untyped-call]


def fp8_linear(inputs_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """As F.linear [T, N], differentiable; T is at least 1, K and N are multiples of FP8_STEP."""
    product_TN: Tensor = Fp8Product.apply(inputs_TK, weight_NK, bias_N)  # type: ignore[no-untyped-call]
    return product_TN


def quantize(tensor_TK: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tensor in FP8, and the fp32 scale that its numbers are to be multiplied by."""
    largest = torch.finfo(dtype).max
    amax = tensor_TK.abs().amax(-1).amax().float().clamp(min=_SMALLEST)
    return (tensor_TK.float() * (largest / amax)).to(dtype).contiguous(), amax / largest


def _multiply(
    left_MK: Tensor,
    right_NK: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    dtype: torch.dtype,
    bias_N: Tensor | None = None,
    is_rough: bool = False,
) -> Tensor:
    """The product a b^T + bias [M, N]: the kernels read both operands along what is summed over."""
    by_tensor = F.ScalingType.TensorWise
    product_MN: Tensor = F.scaled_mm(
        left_MK, right_NK.t(), left_scale, by_tensor, right_scale, by_tensor,
        bias=bias_N, output_dtype=dtype, use_fast_accum=is_rough,
    )  # fmt: skip
    return product_MN


def _turn(small_TK: Tensor) -> Tensor:
    """[K, T] in memory, T padded with zeros to a multiple of FP8_STEP; zero is a byte of zeros."""
    bytes_KT = F.pad(small_TK.view(torch.uint8).t(), (0, -small_TK.shape[0] % FP8_STEP))
    return bytes_KT.contiguous().view(small_TK.dtype)
