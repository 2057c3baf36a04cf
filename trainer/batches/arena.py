"""Decoded blocks side by side in flat arrays, from which the rows of a step are gathered.

What a block decodes to is checked against the block table's counts, and the ids and positions in it
against what they point into.

N rows gathered, R runs of rows.
"""

from typing import Any

import numpy as np

from pipeline.shards.block import TOKENS_PER_BLOCK, Array, Block, decode_block
from pipeline.shards.records import BlockTable, Shard
from trainer.batches.rows import HostMemory, gather_lists, gather_values

_TOKENS_PER_MASKED = 4
"""One masked position in so many tokens has room at first; more make every slot larger."""


class Arena:
    """Slots that hold a block each.

    A column of lists is one array of values and one of offsets over all slots, so that what a step
    takes of hundreds of blocks, often one row of each, is gathered by a single call.
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

    def put(self, block: Block, where: str = "a block") -> int:
        """Copies a block into a free slot, which it returns.

        Raises:
            ValueError: Its tokens are wider or narrower than those of the blocks before it; it
                begins with `where`.
        """
        found, expected = block.input_ids.dtype, self._lists["input_ids"].dtype
        if self._num_slots and found != expected:
            raise ValueError(
                f"{where}: tokens of {found} among blocks of {expected}; verify the dataset"
            )
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

    def gather(
        self, slots: Array, starts: Array, stops: Array, memory: HostMemory | None = None
    ) -> Block:
        """Rows starts to stops - 1 of the slots, one run after another; all [R].

        Returns:
            A block that shares nothing with the arena; it lies in a piece of `memory`.
        """
        first, last = slots * self._stride + starts, slots * self._stride + stops
        num_rows = int((stops - starts).sum())
        flat = {name: (num_rows, column.dtype) for name, column in self._flat.items()}
        lists: dict[str, tuple[int, Any]] = {"offsets": (num_rows + 1, np.int32)}
        lists |= {"masked_offsets": (num_rows + 1, np.int32)}
        lists |= {
            name: (column.count(first, last), column.dtype) for name, column in self._lists.items()
        }
        columns = flat | lists
        into = dict(
            zip(columns, (memory or HostMemory()).take(list(columns.values())), strict=True)
        )
        for name, column in self._lists.items():
            offsets = into["offsets" if name == "input_ids" else "masked_offsets"]
            column.gather(first, last, (offsets, into[name]))
        for name, values in self._flat.items():
            gather_values(first, last, values, into[name])
        return Block(**into)

    def _grow(self, num_slots: int) -> None:
        self._free += range(num_slots - 1, self._num_slots - 1, -1)
        self._num_slots = num_slots
        for name, column in self._flat.items():
            more = np.zeros(num_slots * self._stride - len(column), column.dtype)
            self._flat[name] = np.concatenate([column, more])


def unpack_block(
    body: memoryview, table: BlockTable, index: int, shard: Shard, vocab_size: int, where: str
) -> Block:
    """A block of a shard out of its stored bytes, checked against the tables and the vocabulary.

    Nothing in it points outside its instance or the vocabulary.

    Raises:
        ValueError: It is no block of this shard, though its crc32 was right, or training would look
            up what is not there.
    """
    block = decode_block(body, where)
    counts = block.num_instances, block.num_tokens
    listed = int(table.instances[index]), int(table.tokens[index])
    if counts != listed:
        raise ValueError(
            f"{where}: holds {counts} instances and tokens, the block table says {listed}"
        )
    check_block(block, shard.seq_len, vocab_size, where)
    return block


def check_block(block: Block, seq_len: int, vocab_size: int, where: str) -> None:
    """Refuses a block of which something is too long or points outside; raises ValueError."""
    lengths = np.diff(block.offsets)
    if (longest := int(lengths.max(initial=0))) > seq_len:
        raise ValueError(
            f"{where}: an instance of {longest} tokens in a shard of seq_len {seq_len}"
        )
    _expect_below("token id", block.input_ids, vocab_size, block.offsets, where)
    _expect_below("masked_lm_id", block.masked_lm_ids, vocab_size, block.masked_offsets, where)
    limits = np.repeat(lengths, np.diff(block.masked_offsets))
    _expect_below(
        "masked_lm_position", block.masked_lm_positions, limits, block.masked_offsets, where
    )


def _expect_below(
    what: str, values: Array, limits: Array | int, offsets: Array, where: str
) -> None:
    """Names the first of the values that is not below its limit, and the instance it belongs to.

    Instance n holds values offsets[n] to offsets[n + 1] - 1; offsets are [N+1].
    """
    if not np.any(is_wrong := values >= limits):
        return
    place = int(np.argmax(is_wrong))
    instance = int(np.searchsorted(offsets, place, side="right")) - 1
    limit = np.broadcast_to(limits, values.shape)[place]
    raise ValueError(
        f"{where}, instance {instance}: {what} {values[place]} should be below {limit}; run `python -m pipeline verify`"
        " on the dataset, and restore or rebuild it"
    )


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
        first, start = slot * self._stride, slot * self._capacity
        self._values[start : start + len(values)] = values
        rows = self._offsets[first : first + self._stride]
        np.multiply(offsets, values.itemsize, out=rows[: len(offsets)], dtype=np.int64)
        rows[: len(offsets)] += start * values.itemsize
        rows[len(offsets) :] = rows[len(offsets) - 1]

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of the values."""
        return self._values.dtype

    def count(self, first: Array, last: Array) -> int:
        """Values of the lists first to last - 1 of every run."""
        return int((self._offsets[last] - self._offsets[first]).sum()) // self._values.itemsize

    def gather(self, first: Array, last: Array, into: tuple[Array, Array]) -> None:
        """Offsets [N+1] int32 and values of the lists first to last - 1 of every run."""
        gather_lists(first, last, self._offsets, self._values, into)

    def _resize(self, num_slots: int, capacity: int, dtype: "np.dtype[Any]") -> None:
        """Makes room for more slots, or for more values in each, and keeps what is there."""
        old = len(self._values) // self._capacity
        values = np.empty((num_slots, capacity), dtype)
        values[:old, : self._capacity] = self._values.reshape(old, self._capacity)
        offsets = np.zeros(num_slots * self._stride + 1, np.int64)
        moved = np.arange(old) * (capacity - self._capacity) * values.itemsize
        offsets[: old * self._stride] = self._offsets[: old * self._stride] + np.repeat(
            moved, self._stride
        )
        self._values, self._offsets, self._capacity = values.ravel(), offsets, capacity
