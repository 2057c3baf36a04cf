"""Bounds the memory that a process on a CPU holds but does not use.

Packed micro-batches differ in size from step to step. glibc takes their tensors from one heap, and
oneDNN compiles kernels for each new size, which lie between the tensors and stay. So free gaps of
the heap are not used again, and without these functions the process grows for thousands of steps:
BERT-mini in bf16, at 8,192 tokens a micro-batch, from 1.7 GB to 7.9 GB in 2,800 steps.
"""

import ctypes
import os

_MOST_KERNELS = "64"
"""The number of kernels that oneDNN keeps.

The layers of one micro-batch share some 20. The next micro-batch has another size, so more are of
no use. oneDNN's own number is 1,024.
"""


def keep_few_kernels() -> None:
    """Lets oneDNN keep 64 compiled kernels, unless the user has set a number.

    It must be called before the first product of matrices, because oneDNN reads the variable
    ONEDNN_PRIMITIVE_CACHE_CAPACITY of the environment only once.
    """
    if "DNNL_PRIMITIVE_CACHE_CAPACITY" not in os.environ:  # oneDNN's older name for it
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _MOST_KERNELS)


def release_free_memory() -> None:
    """Gives the free memory of this process's heaps back to the system.

    It takes some 0.1 seconds for a gigabyte. C libraries other than glibc have no such function,
    and then nothing happens.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
