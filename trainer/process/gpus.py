"""What GPUs are said to reach, from their vendors' data sheets."""

import re
from typing import NamedTuple


class Gpu(NamedTuple):
    """Dense bf16 TFLOP/s (of a V100 fp16) and memory in GB; 0 where they are not known."""

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
# What torch calls them; variants with a lower clock come before the name they share.
_VARIANTS = {r"H100 PCIe": 756, r"H100 NVL": 835, r"GH200|H800": 989, r"A800": 312}


def peak_tflops_of(device_name: str) -> float | None:
    """TFLOP/s of the GPU that torch gives this name, dense bf16; None where it is not known."""
    names = _VARIANTS | {name.upper(): gpu.tflops for name, gpu in GPUS.items()}
    found = (tflops for name, tflops in names.items() if re.search(rf"\b({name})\b", device_name))
    return next(found, None)
