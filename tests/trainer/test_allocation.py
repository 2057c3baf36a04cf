import subprocess
import sys

import pytest

_HEAP = """
import ctypes

from trainer.process.allocation import release_free_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20


blocks = []
for _ in range(1000):
    blocks.append(libc.malloc(100_000))
    ctypes.memset(blocks[-1], 1, 100_000)
    libc.malloc(1000)  # stays, so the heap cannot shrink at its end
for block in blocks:
    libc.free(block)
before = resident_mib()
release_free_memory()
print(before - resident_mib())
"""

_KERNELS = """
import os

from trainer.process.allocation import keep_few_kernels

keep_few_kernels()
print(os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY"))
"""


def _run(script, variables):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)} | variables
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    ).stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can release")
def test_gaps_of_the_heap_are_released():
    released = int(_run(_HEAP, {}))
    assert 80 < released <= 96, "1,000 blocks of 100,000 bytes lie between small ones that stay"


@pytest.mark.parametrize(
    ("variables", "capacity"),
    [
        ({}, "64"),
        ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9"}, "9"),
        ({"DNNL_PRIMITIVE_CACHE_CAPACITY": "9"}, "None"),
    ],
)
def test_few_kernels_are_kept_unless_the_user_says_otherwise(variables, capacity):
    assert _run(_KERNELS, variables) == capacity
