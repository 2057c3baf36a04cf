"""Decoded blocks side by side in flat arrays, from which the rows of a step are gathered, whatever blocks they are in.

May import the stdlib, numpy, pyarrow and pipeline.shards. N rows gathered, R runs of rows.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.shards.block import TOKENS_PER_BLOCK, Array, Block

_TOKENS_PER_MASKED = 4
"""Room for one masked position in so many tokens at first; a block with more makes every slot larger."""


class Arena:
    """Slots that hold a block each.

    A column of lists is one Arrow array of byte strings over all slots, as Arrow gathers those by one memcpy a row,
    which is 7 times as fast as slicing and joining blocks where a step takes one row of each of many. Arrow does not
    keep what is written into its buffers from being seen, and arrays are made anew over them for every gathering.
    """

    def __init__(self, block_size: int) -> None:
        """An arena without slots, for blocks of at most block_size instances."""
        self._stride = block_size + 1  # the last row of a slot is what its block leaves empty
        self._free: list[int] = []
        self._num_slots = 0
        max_masked = TOKENS_PER_BLOCK // _TOKENS_PER_MASKED
        self._lists = {
            "input_ids": _Lists(self._stride, TOKENS_PER_BLOCK),
            "masked_lm_positions": _Lists(self._stride, max_masked),
            "masked_lm_ids": _Lists(self._stride, max_masked),
        }
        flat: dict[str, Any] = {"segment_a_length": np.uint16, "is_random_next": np.bool_}
        flat |= {"document_a": np.uint64, "document_b": np.uint64}
        self._flat: dict[str, Array] = {name: np.zeros(0, dtype) for name, dtype in flat.items()}

    def put(self, block: Block) -> int:
        """Copies a block into a free slot, which it returns."""
        if not self._free:
            self._grow(max(4, 2 * self._num_slots))
        slot = self._free.pop()
        for name, lists in self._lists.items():
            offsets = block.offsets if name == "input_ids" else block.masked_offsets
            lists.put(slot, self._num_slots, offsets, getattr(block, name))
        first = slot * self._stride
        for name, column in self._flat.items():
            column[first : first + block.num_instances] = getattr(block, name)
        return slot

    def free(self, slot: int) -> None:
        """Lets a slot be used again."""
        self._free.append(slot)

    def gather(self, slots: Array, starts: Array, stops: Array) -> Block:
        """Rows starts to stops - 1 of the slots, one run after another; all [R].

        Returns:
            A block that shares nothing with the arena.
        """
        counts = stops - starts
        ends = np.cumsum(counts)
        rows = np.repeat(slots * self._stride + starts - ends + counts, counts)
        rows += np.arange(len(rows))
        offsets, input_ids = self._lists["input_ids"].gather(rows)
        masked_offsets, positions = self._lists["masked_lm_positions"].gather(rows)
        _, labels = self._lists["masked_lm_ids"].gather(rows)
        return Block(
            input_ids=input_ids,
            offsets=offsets,
            masked_lm_positions=positions,
            masked_lm_ids=labels,
            masked_offsets=masked_offsets,
            **{name: column[rows] for name, column in self._flat.items()},
        )

    def _grow(self, num_slots: int) -> None:
        self._free += range(num_slots - 1, self._num_slots - 1, -1)
        self._num_slots = num_slots
        for name, column in self._flat.items():
            more = np.zeros(num_slots * self._stride - len(column), column.dtype)
            self._flat[name] = np.concatenate([column, more])


class _Lists:
    """A column of lists: `values` of slot s begin at s * capacity; offsets count bytes."""

    def __init__(self, stride: int, capacity: int) -> None:
        self._stride = stride
        self._capacity = capacity
        self._values: Array = np.zeros(0)
        self._offsets: Array = np.zeros(1, np.int64)

    def put(self, slot: int, num_slots: int, offsets: Array, values: Array) -> None:
        """Writes a block's column into a slot of num_slots."""
        if len(self._offsets) <= num_slots * self._stride - 1 or len(values) > self._capacity:
            self._resize(num_slots, max(self._capacity, len(values)), values.dtype)
        assert values.dtype == self._values.dtype, f"{values.dtype} among blocks of {self._values.dtype}"
        first, start = slot * self._stride, slot * self._capacity
        self._values[start : start + len(values)] = values
        rows = self._offsets[first : first + self._stride]
        np.multiply(offsets, values.itemsize, out=rows[: len(offsets)], dtype=np.int64)
        rows[: len(offsets)] += start * values.itemsize
        rows[len(offsets) :] = rows[len(offsets) - 1]

    def gather(self, rows: Array) -> tuple[Array, Array]:
        """Offsets [N+1] int32 and values of the lists at some rows."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._values)]
        strings = pa.Array.from_buffers(pa.large_binary(), len(self._offsets) - 1, buffers, null_count=0)
        _, offsets, values = strings.take(pa.array(rows)).buffers()
        starts = np.frombuffer(offsets, np.int64, len(rows) + 1) // self._values.itemsize
        return starts.astype(np.int32), np.frombuffer(values or b"", self._values.dtype, int(starts[-1]))

    def _resize(self, num_slots: int, capacity: int, dtype: "np.dtype[Any]") -> None:
        """Makes room for more slots, or for more values in each, and keeps what is there."""
        old = len(self._values) // self._capacity
        values = np.empty((num_slots, capacity), dtype)
        values[:old, : self._capacity] = self._values.reshape(old, self._capacity)
        offsets = np.zeros(num_slots * self._stride + 1, np.int64)
        moved = np.arange(old) * (capacity - self._capacity) * values.itemsize
        offsets[: old * self._stride] = self._offsets[: old * self._stride] + np.repeat(moved, self._stride)
        self._values, self._offsets, self._capacity = values.ravel(), offsets, capacity
