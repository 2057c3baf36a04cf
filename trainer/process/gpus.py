"""Lists the speed and memory of GPUs, from their vendors' data sheets."""

import re
from typing import NamedTuple


class Gpu(NamedTuple):
    """What a data sheet says of a GPU; 0 means that it is not known.

    Attributes:
        tflops: Dense bf16 TFLOP/s of matrix products; fp16 for a V100, which has no bf16.
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
    "cpu": Gpu(0, 0),
}
# TFLOP/s of variants with another clock, by patterns of the names that torch gives them. They are
# tried before the names in GPUS.
_VARIANTS = {r"H100 PCIe": 756, r"H100 NVL": 835, r"GH200|H800": 989, r"A800": 312}


def peak_tflops_of(device_name: str) -> float | None:
    """Returns the dense bf16 TFLOP/s of a GPU, or None if it is not known.

    Args:
        device_name: The name that torch gives the GPU, such as "NVIDIA H100 80GB HBM3".
    """
    patterns = _VARIANTS | {name.upper(): gpu.tflops for name, gpu in GPUS.items()}
    for pattern, tflops in patterns.items():
        if re.search(rf"\b({pattern})\b", device_name):
            return tflops
    return None
