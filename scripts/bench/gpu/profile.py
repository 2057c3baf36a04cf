"""The largest operations of one step, each beside what the device could do at best."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ROWS = 25


def operations_of(step: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Kernels (on a CPU: operators) of one step, the longest first, and how many were started in all.

    Returns:
        launches; device_seconds, their sum; largest, a list of name, calls, seconds, share;
        matrix_products, the same by shapes with TFLOP/s.
    """
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities, record_shapes=True, with_flops=True) as profiler:
        step()
        if is_cuda:
            torch.cuda.synchronize()
    kernels = [each for each in profiler.key_averages() if _is_kernel(each, is_cuda)]
    total = sum(_seconds(each, is_cuda) for each in kernels)
    largest = sorted(kernels, key=lambda each: -_seconds(each, is_cuda))[:ROWS]
    return {
        "launches": sum(each.count for each in kernels),
        "device_seconds": round(total, 6),
        "largest": [
            {
                "name": each.key[:120],
                "calls": each.count,
                "seconds": round(_seconds(each, is_cuda), 6),
                "share": round(_seconds(each, is_cuda) / total, 4),
            }
            for each in largest
        ],
        "matrix_products": _matrix_products(profiler, is_cuda),
    }


def _matrix_products(profiler: Any, is_cuda: bool) -> list[dict[str, Any]]:
    """By shapes: where the arithmetic is."""
    rows = [
        each
        for each in profiler.key_averages(group_by_input_shape=True)
        if each.flops and "mm" in each.key
    ]
    timed = [
        (each, each.device_time_total / 1e6 if is_cuda else each.cpu_time_total / 1e6)
        for each in rows
    ]
    timed.sort(key=lambda pair: -pair[1])
    return [
        {
            "name": each.key,
            "shapes": [shape for shape in each.input_shapes if shape],
            "calls": each.count,
            "seconds": round(seconds, 6),
            "tflops": round(each.flops / seconds / 1e12, 3) if seconds else None,
        }
        for each, seconds in timed[:ROWS]
    ]


def _is_kernel(event: Any, is_cuda: bool) -> bool:
    on_device: bool = event.device_type.name == "CUDA"
    if is_cuda:  # spans that only name what runs in them lie on the device as well
        return on_device and not getattr(event, "is_user_annotation", False)
    return str(event.key).startswith("aten::")


def _seconds(event: Any, is_cuda: bool) -> float:
    micro: float = event.self_device_time_total if is_cuda else event.self_cpu_time_total
    return micro / 1e6
