"""What is planned: steps, and the blocks that they hold.

Steps are planned many together, and wait in a queue while their blocks are being read.
"""

import contextlib
import mmap
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Array, block_instances
from pipeline.shards.records import Shard
from trainer.reading.read_threads import Read


class Steps(NamedTuple):
    """Some steps one after another, in slot order.

    Each takes rows start to stop - 1 of blocks of shards.

    Attributes:
        shard: [R] int64, as are the next three.
        block: Its place in the shard.
        start: The first row in the block.
        stop: One past the last.
        bounds: [S+1] int64; step i is rows bounds[i] to bounds[i + 1] - 1 of these.
    """

    shard: Array
    block: Array
    start: Array
    stop: Array
    bounds: Array

    def __bool__(self) -> bool:
        return len(self.bounds) > 1

    @property
    def instances(self) -> Array:
        """Instances before each step, and of all [S+1]."""
        counts = np.concatenate([[0], np.cumsum(self.stop - self.start)])
        before: Array = counts[self.bounds]
        return before

    def cut(self, first: int, last: int) -> "Steps":
        """Steps first to last - 1 of these."""
        rows, bounds = (
            slice(self.bounds[first], self.bounds[last]),
            self.bounds[first : last + 1] - self.bounds[first],
        )
        return Steps(self.shard[rows], self.block[rows], self.start[rows], self.stop[rows], bounds)


class Planned(NamedTuple):
    """Planned steps: rows start to stop - 1 of the blocks with these numbers; all [R].

    Attributes:
        bounds: Where each step begins in the rows, and the end.
        instances: Before each step, and of all.
    """

    number: Array
    start: Array
    stop: Array
    bounds: list[int]
    instances: list[int]

    def cut(self, first: int, last: int) -> "Planned":
        """Steps first to last - 1 of these."""
        begin, end = self.bounds[first], self.bounds[last]
        bounds, instances = (
            [each - values[first] for each in values[first : last + 1]]
            for values in (self.bounds, self.instances)
        )
        return Planned(
            self.number[begin:end], self.start[begin:end], self.stop[begin:end], bounds, instances
        )


class StepQueue:
    """Planned steps in order. Those planned together may be taken together."""

    def __init__(self) -> None:
        self._waiting: deque[Planned] = deque()
        self._next = 0  # of the steps of the first
        self._num_steps = 0

    def __len__(self) -> int:
        return self._num_steps

    def add(self, numbers: Array, steps: Steps) -> None:
        """Adds steps at the end, with the numbers of their blocks [R]."""
        self._waiting.append(
            Planned(
                numbers, steps.start, steps.stop, steps.bounds.tolist(), steps.instances.tolist()
            )
        )
        self._num_steps += len(steps.bounds) - 1

    def peek(self, min_instances: int, max_steps: int) -> Planned:
        """The next steps, until they have so many instances, or those planned together end."""
        steps, first = self._waiting[0], self._next
        last = bisect_left(steps.instances, steps.instances[first] + min_instances, first + 1)
        return steps.cut(first, min(last, first + max_steps, len(steps.instances) - 1))

    def drop(self, num_steps: int) -> None:
        """Takes away the next steps, which were planned together."""
        self._next += num_steps
        self._num_steps -= num_steps
        if self._next == len(self._waiting[0].bounds) - 1:
            self._waiting.popleft()
            self._next = 0


class HeldBlocks:
    """Blocks numbered through all shards, so that arrays tell of each whether it is held and where.

    Nothing is done for each row of a step but by numpy: with many lanes and small batches a step is
    one row of each of hundreds of blocks.

    Attributes:
        reads: What brings each block that is held, by its number.
        num_bytes: What those cost.
        slot: The slot in the arena, from 1, by the number of a block; 0 where it is not decoded.
        cost_bytes: What each block that is held costs.
    """

    def __init__(self) -> None:
        self.reads: dict[int, Read] = {}
        self.num_bytes = 0
        self.slot: Array = np.zeros(0, np.int32)
        self.cost_bytes: Array = np.zeros(0, np.int64)
        self._first_number: Array = np.zeros(1, np.int64)
        self._last_use: Array = np.zeros(
            0, np.int64
        )  # the step, counted from 1; 0 where a block is not held

    def number(self, shards: Sequence[Shard], shard: Array, block: Array) -> Array:
        """The numbers of blocks by shard and place in it; shards added later come after others."""
        if len(self._first_number) <= len(shards):
            self._number_all(shards)
        numbers: Array = self._first_number[shard] + block
        return numbers

    def unknown(self, numbers: Array) -> Array:
        """The rows of numbers [R] where blocks that are not held come first, in order."""
        return _first_rows(numbers, self._last_use)

    def undecoded(self, numbers: Array) -> Array:
        """The rows of numbers [R] where blocks that are in no slot come first, in order."""
        return _first_rows(numbers, self.slot)

    def use(self, numbers: Array, steps: Array) -> None:
        """Keeps blocks [R], some of them several times, until steps [R] at least, which ascend."""
        self._last_use[numbers] = steps

    def hold(self, numbers: Array, cost_bytes: Array) -> None:
        """Counts blocks that are now held."""
        self.cost_bytes[numbers] = cost_bytes
        self.num_bytes += int(cost_bytes.sum())

    def expect(self, read: Read) -> None:
        """Names what brings some of the blocks that are held."""
        num_blocks = read.blocks.stop - read.blocks.first
        self.reads |= dict.fromkeys(range(read.first_number, read.first_number + num_blocks), read)

    def let_go(self, numbers: Array, step: int) -> list[int]:
        """Drops those of decoded blocks that no step after this one uses. Returns their slots."""
        is_last = self._last_use[numbers] <= step
        if not is_last.any():
            return []
        dropped = list({*numbers[is_last].tolist()})
        slots: list[int] = (self.slot[dropped] - 1).tolist()
        self.num_bytes -= sum(self.cost_bytes[dropped].tolist())
        self._last_use[dropped] = self.slot[dropped] = 0
        for number in dropped:
            del self.reads[number]
        return slots

    def _number_all(self, shards: Sequence[Shard]) -> None:
        added = shards[len(self._first_number) - 1 :]
        counts = [-(-shard.instances // block_instances(shard.seq_len)) for shard in added]
        self._first_number = np.concatenate(
            [self._first_number, self._first_number[-1] + np.cumsum(counts)]
        )
        self._last_use, self.slot, self.cost_bytes = (
            _lengthen(each, self._first_number[-1])
            for each in (self._last_use, self.slot, self.cost_bytes)
        )


def _first_rows(numbers: Array, values: Array) -> Array:
    """Where numbers [R] of which the values are 0 come for the first time."""
    rows = np.flatnonzero(values[numbers] == 0)
    _, first = np.unique(numbers[rows], return_index=True)
    found: Array = np.sort(rows[first])
    return found


def _lengthen(values: Array, size: int) -> Array:
    """The values and then zeros, of which the system only keeps what is written.

    There may be millions of blocks. Not from numpy, whose large arrays ask for pages of 2 MiB: a
    few blocks of each lane would touch most of them.
    """
    pages = mmap.mmap(
        -1, max(1, size * values.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    longer: Array = np.frombuffer(pages, values.dtype, size)
    longer[: len(values)] = values
    return longer
