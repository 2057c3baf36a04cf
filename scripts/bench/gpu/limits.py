"""What the device reaches at best, measured: one large matrix product, one large copy."""

import math
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.bench.measured import summarize

SIZES = (8_192, 4_096)  # of a square product: the larger rate is the ceiling
HELD_SECONDS = 3.0
MOST_HELD = 20_000  # products, should one take no time
COPY_BYTES = 4 * 2**30


def measure_limits(
    device: torch.device, dtype: torch.dtype, repeats: int = 20, smaller_by: int = 1
) -> dict[str, Any]:
    """TFLOP/s of matrix products on random numbers and TB/s of a copy, read and written bytes counted.

    Args:
        device: Where.
        dtype: Of the products.
        repeats: Products of a size, and copies.
        smaller_by: Divides the sizes, for a slow device.
    """
    products: dict[str, Any] = {}
    for size in (each // smaller_by for each in SIZES):
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=device, dtype=dtype)
        seconds = repeat(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device, repeats)  # type: ignore[misc]
        products[str(size)] = summarize([2 * size**3 / each / 1e12 for each in seconds], 4)
        if device.type == "cuda":  # the clocks of a burst do not last
            times = min(MOST_HELD, math.ceil(HELD_SECONDS / median(seconds)))
            held = repeat(lambda a=left, b=right, c=out: torch.mm(a, b, out=c), device, times)  # type: ignore[misc]
            products[f"{size} held"] = summarize(
                [2 * size**3 / each / 1e12 for each in held[len(held) // 2 :]], 4
            )
            products[f"{size} fp8"] = _measure_fp8(left, right, repeats)
    source = torch.randn(COPY_BYTES // smaller_by**3 // 4, device=device)
    target = torch.empty_like(source)
    rates = [
        2 * source.nbytes / each / 1e12
        for each in repeat(lambda: target.copy_(source), device, repeats)
    ]
    return {
        "matmul_tflops": max(each["median"] for name, each in products.items() if name.isdigit()),
        "matmul_tflops_by_size": products,
        "copy_terabytes_per_second": summarize(rates, 4),
    }


def _measure_fp8(left: Tensor, right: Tensor, repeats: int) -> dict[str, Any]:
    """TFLOP/s of the same product in FP8, or why there is none: what is measured after it goes on."""
    by_tensor, one = F.ScalingType.TensorWise, torch.ones((), device=left.device)
    small, other = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
    try:
        seconds = repeat(
            lambda: F.scaled_mm(small, other, one, by_tensor, one, by_tensor, use_fast_accum=True),
            left.device,
            repeats,
        )
    except Exception as error:  # noqa: BLE001 - a GPU without FP8, a library that refuses a shape
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
    return summarize([2 * left.shape[0] ** 3 / each / 1e12 for each in seconds], 4)


def repeat(function: Callable[[], object], device: torch.device, times: int) -> list[float]:
    """Seconds of every call, after three that are not counted."""
    for _ in range(3):
        function()
    if device.type != "cuda":
        moments = [time.perf_counter()]
        for _ in range(times):
            function()
            moments.append(time.perf_counter())
        return [stop - start for start, stop in pairwise(moments)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        function()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in pairwise(events)]
