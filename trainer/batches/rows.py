"""Rows of many blocks brought together, what follows from their lengths, and memory for them.

The memory is used again when nobody looks at it any more. A step's columns are some MB. Memory that
is new costs a page fault every 4 KiB, which is more than filling it; and copies to a GPU are only
asynchronous from pinned memory, which is dear to get.

What is computed here is the definition; trainer/batches/_rows.c, where it is built
(`tokenizer.compiled`), does the same, sooner. N rows in R runs, T tokens, M masked positions.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block
from tokenizer.compiled import load

COMPILED = load("trainer.batches._rows")

ALIGNMENT_BYTES = 64
_SIZE_STEP_BYTES = 2**20
_MAX_FREE = 8


def gather_lists(
    first: Array, last: Array, offsets: Array, values: Array, into: tuple[Array, Array]
) -> None:
    """Lists first to last - 1 of a column, one run after another.

    Args:
        first: [R] int64.
        last: [R] int64, above first.
        offsets: int64, in bytes; list n is values.view(bytes)[offsets[n]:offsets[n + 1]].
        values: Values of all lists, 2 or 4 bytes each; lists that follow each other in a run lie
            side by side.
        into: Receives offsets [N+1] int32 from 0, and the values.
    """
    if COMPILED is not None:
        COMPILED.gather_lists(first, last, offsets, values, values.itemsize, *into)
        return
    row = place = 0
    into[0][0] = 0
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        bounds = offsets[start : stop + 1] // values.itemsize
        moved = bounds - bounds[0] + place
        into[0][row : row + len(moved)] = moved
        into[1][place : moved[-1]] = values[bounds[0] : bounds[-1]]
        row, place = row + stop - start, int(moved[-1])


def gather_values(first: Array, last: Array, column: Array, into: Array) -> None:
    """Values first to last - 1 of a column, one run [R] after another, into [N]."""
    if COMPILED is not None:
        COMPILED.gather_values(first, last, column, column.itemsize, into)
        return
    row = 0
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        into[row : row + stop - start] = column[start:stop]
        row += stop - start


@dataclass(frozen=True)
class Columns:
    """What follows of the lengths of instances, to be filled: C micro-batches, one after another.

    Attributes:
        token_type_ids: [T] uint8; 0 for segment A and 1 for the rest.
        position_ids: [T] uint16; counted from each instance's start.
        masked_positions: [M] int32; counted from the start of the micro-batch.
        cu_seqlens: [N+C] int32; of each micro-batch the offsets of its instances, from 0 to its
            tokens.
        longest: [C] int32; tokens of the longest instance, 0 of none.
    """

    token_type_ids: Array
    position_ids: Array
    masked_positions: Array
    cu_seqlens: Array
    longest: Array


def fill_columns(block: Block, firsts: Array, lasts: Array, into: Columns) -> None:
    """Fills the columns of micro-batches.

    Args:
        block: N instances; its offsets begin at 0.
        firsts: [C] int64; the first instance of each, which is where the one before ends.
        lasts: [C] int64; one past the last instance of each.
        into: Has room for all tokens of the block; those outside of the micro-batches may be filled
            or not.
    """
    if COMPILED is not None:
        given = (
            block.offsets,
            block.segment_a_length,
            block.masked_offsets,
            block.masked_lm_positions,
            firsts,
            lasts,
        )
        filled = (
            into.token_type_ids,
            into.position_ids,
            into.masked_positions,
            into.cu_seqlens,
            into.longest,
        )
        COMPILED.fill_columns(*given, *filled)
        return
    for cut, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        start = first - firsts[0] + cut
        starts = block.offsets[first : last + 1] - block.offsets[first]
        into.cu_seqlens[start : start + len(starts)] = starts
        into.longest[cut] = np.diff(starts).max(initial=0)
        for instance in range(first, last):
            _fill_instance(block, instance, block.offsets[first], into)


def _fill_instance(block: Block, instance: int, micro_batch_start: int, into: Columns) -> None:
    tokens = slice(*block.offsets[instance : instance + 2])
    masked = slice(*block.masked_offsets[instance : instance + 2])
    into.position_ids[tokens] = np.arange(tokens.stop - tokens.start)
    into.token_type_ids[tokens] = into.position_ids[tokens] >= block.segment_a_length[instance]
    into.masked_positions[masked] = block.masked_lm_positions[masked] + (
        tokens.start - micro_batch_start
    )


class HostMemory:
    """Pieces of memory. One thread takes them.

    Arrays, and tensors made of them, may be dropped by any. A piece is free again when the last
    array, view or tensor over it is gone. A tensor that is copied to a GPU must therefore be kept
    until the copy is over, as training does, which reads the losses of a step before the next.

    Attributes:
        is_pinned: Whether pieces are pinned for CUDA.
    """

    def __init__(self, is_pinned: bool = False) -> None:
        self.is_pinned = is_pinned
        self._free: deque[Array] = deque(maxlen=_MAX_FREE)

    def take(self, columns: Sequence[tuple[int, Any]]) -> list[Array]:
        """Arrays of so many values of a dtype each, uninitialized, side by side in one piece."""
        sizes = [count * np.dtype(dtype).itemsize for count, dtype in columns]
        starts = list(
            accumulate((-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes), initial=0)
        )
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
