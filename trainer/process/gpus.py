"""What GPUs are said to reach, from their vendors' data sheets."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One model of GPU.

    Attributes:
        tflops: Dense bf16 TFLOP/s, of a V100 fp16.
        memory_gb: Memory in GB.
        memory_tb_s: Bandwidth of that memory in TB/s.
        link_gb_s: Bandwidth to the other GPUs of a node in GB/s, one direction.
    """

    tflops: float
    memory_gb: int
    memory_tb_s: float
    link_gb_s: float


GPUS = {
    "v100": Gpu(125, 32, 0.90, 150),
    "a100-40gb": Gpu(312, 40, 1.56, 300),
    "a100": Gpu(312, 80, 2.04, 300),
    "l4": Gpu(121, 24, 0.30, 32),
    "l40s": Gpu(362, 48, 0.86, 32),
    "h100": Gpu(989, 80, 3.35, 450),
    "h200": Gpu(989, 141, 4.80, 450),
    "b200": Gpu(2250, 180, 8.0, 900),
    "mi300x": Gpu(1307, 192, 5.3, 448),
    "cpu": Gpu(
        0, 0, 0.02, 2
    ),  # products and memory are not known; 20 GB/s and 2 GB/s are of one rank on a server
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
