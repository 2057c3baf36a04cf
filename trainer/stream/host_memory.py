"""Memory that steps are written into, used again when nobody looks at it any more.

A step's columns are some MB. Memory that is new costs a page fault every 4 KiB, which is more than filling it; and
copies to a GPU are only asynchronous from pinned memory, which is dear to get.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pipeline.shards.block import Array

ALIGNMENT_BYTES = 64
_SIZE_STEP_BYTES = 2**20
_MAX_FREE = 8


class HostMemory:
    """Pieces of memory. One thread takes them; arrays, and tensors made of them, may be dropped by any.

    A piece is free again when the last array, view or tensor over it is gone. A tensor that is copied to a GPU must
    therefore be kept until the copy is over, as training does, which reads the losses of a step before the next.

    Attributes:
        is_pinned: Whether pieces are pinned for CUDA.
    """

    def __init__(self, is_pinned: bool = False) -> None:
        self.is_pinned = is_pinned
        self._free: deque[Array] = deque(maxlen=_MAX_FREE)

    def take(self, columns: Sequence[tuple[int, Any]]) -> list[Array]:
        """Arrays of so many values of a dtype each, uninitialized, side by side in one piece of memory."""
        sizes = [count * np.dtype(dtype).itemsize for count, dtype in columns]
        starts = list(accumulate((-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes), initial=0))
        piece = np.asarray(_Lease(self._find(starts[-1]), self._free))
        placed = zip(columns, starts, sizes, strict=False)
        return [piece[start : start + size].view(dtype) for (_, dtype), start, size in placed]

    def _find(self, num_bytes: int) -> Array:
        """A free piece that is large enough, or a new one; those that are too small are let go."""
        while self._free:
            piece = self._free.pop()
            if len(piece) >= num_bytes:
                return piece
        size = max(1, math.ceil(num_bytes * 1.125 / _SIZE_STEP_BYTES)) * _SIZE_STEP_BYTES
        if not self.is_pinned:
            return np.empty(size, np.uint8)
        import torch

        pinned: Array = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return pinned


class _Lease:
    """Owns a piece as long as arrays over it live: numpy keeps what it has the memory from."""

    def __init__(self, piece: Array, free: "deque[Array]") -> None:
        self._piece, self._free = piece, free
        self.__array_interface__ = piece.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._piece)
