"""What GPUs are said to reach, from their vendors' data sheets."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One model of GPU.

    Attributes:
        tflops: Dense bf16 TFLOP/s, of a V100 fp16.
        memory_gb: Memory in GB.
    """

    tflops: float
    memory_gb: int


GPUS = {
    "v100": Gpu(125, 32),
    "a100-40gb": Gpu(312, 40),
    "a100": Gpu(312, 80),
    "l4": Gpu(121, 24),
    "l40s": Gpu(362, 48),
    "h100": Gpu(989, 80),
    "h200": Gpu(989, 141),
    "b200": Gpu(2250, 180),
    "mi300x": Gpu(1307, 192),
    "cpu": Gpu(0, 0),  # not known
}
# What torch calls them; variants with a lower clock come before the name they share.
_NAMES = (
    (r"\bH100 PCIe\b", 756),
    (r"\bH100 NVL\b", 835),
    (r"\b(H100|H200|GH200|H800)\b", 989),
    (r"\b(A100|A800)\b", 312),
    (r"\bB200\b", 2250),
    (r"\bMI300X\b", 1307),
    (r"\bL40S\b", 362),
    (r"\bL4\b", 121),
    (r"\bV100\b", 125),
)


def peak_tflops_of(device_name: str) -> float | None:
    """TFLOP/s of the GPU that torch gives this name, dense bf16; None where it is not known."""
    return next((tflops for pattern, tflops in _NAMES if re.search(pattern, device_name)), None)
