"""What GPUs are said to reach, from their vendors' data sheets. Imports the standard library only."""

import re

# Dense bf16 (V100: fp16) TFLOP/s and memory in GB.
GPUS = {
    "v100": (125, 32),
    "a100-40gb": (312, 40),
    "a100": (312, 80),
    "l4": (121, 24),
    "l40s": (362, 48),
    "h100": (989, 80),
    "h200": (989, 141),
    "b200": (2250, 180),
    "mi300x": (1307, 192),
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
    """TFLOP/s of the GPU that torch gives this name, dense bf16; None where the name is not known."""
    return next((tflops for pattern, tflops in _NAMES if re.search(pattern, device_name)), None)
