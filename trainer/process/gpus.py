"""Lists the speed, memory and links of GPUs, from their vendors' data sheets."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """The numbers in a GPU's data sheet.

    A number is 0 if it is not known, or if the GPU lacks the feature: `bf16_tflops` is 0 for a GPU
    without bf16.

    Attributes:
        bf16_tflops: Dense TFLOP/s of matrix products in bf16.
        fp32_tflops: TFLOP/s in fp32. Products in TF32 are faster, but torch makes them only if it
            is asked to, and the trainer does not ask.
        memory_gb: Memory in GB.
        peers: The kind of link between the GPUs of one node, such as NVLink.
        peer_gigabytes: GB/s that the GPU sends to the other GPUs of its node.
    """

    bf16_tflops: float
    fp32_tflops: float
    memory_gb: int
    peers: str
    peer_gigabytes: float

    def peak_tflops(self, precision: str) -> float:
        """Returns the TFLOP/s in "bf16" or "fp32"; 0 if they are not known, or there is no bf16."""
        return self.bf16_tflops if precision == "bf16" else self.fp32_tflops


# The data sheets of NVIDIA (V100, A100, L4, L40S, H100, H200, HGX B200) and AMD (MI300X). Rates
# that a sheet gives with sparsity are halved, and rates of links that add both directions too.
# HGX B200 states fp32 for eight GPUs. B200 and H200 have the memory that is free for programs.
GPUS = {
    "v100": Gpu(0, 15.7, 32, "NVLink", 150),
    "a100-40gb": Gpu(312, 19.5, 40, "NVLink", 300),
    "a100": Gpu(312, 19.5, 80, "NVLink", 300),
    "l4": Gpu(121, 30.3, 24, "PCIe 4", 32),
    "l40s": Gpu(362, 91.6, 48, "PCIe 4", 32),
    "h100": Gpu(989, 67, 80, "NVLink", 450),
    "h200": Gpu(989, 67, 141, "NVLink", 450),
    "b200": Gpu(2250, 75, 180, "NVLink", 900),
    "mi300x": Gpu(1307, 163.4, 192, "Infinity Fabric", 448),
    "cpu": Gpu(0, 0, 0, "memory", 0),
}

_VARIANTS = {
    r"H100 PCIe": Gpu(756, 51, 80, "PCIe 5", 64),
    r"H100 NVL": Gpu(835, 60, 94, "PCIe 5", 64),
    r"GH200|H800": GPUS["h100"],
    r"A800": GPUS["a100"],
}
"""Variants of GPUs, by a pattern of the name that torch gives them.

They are tried before `GPUS`, because the names of those occur in the names of some variants.
"""


def peak_tflops_of(device_name: str, precision: str) -> float | None:
    """Returns the TFLOP/s of a GPU's data sheet, or None if they are not known.

    Args:
        device_name: The name that torch gives the GPU, such as "NVIDIA H100 80GB HBM3".
        precision: Number format of the matrix products: "bf16" or "fp32".
    """
    patterns = _VARIANTS | {name.upper(): gpu for name, gpu in GPUS.items()}
    for pattern, gpu in patterns.items():
        if re.search(rf"\b({pattern})\b", device_name):
            return gpu.peak_tflops(precision) or None
    return None
