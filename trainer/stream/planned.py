"""Steps as a plan gives them, many together, and the queue of those whose blocks are being read."""

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Array


class Steps(NamedTuple):
    """Some steps one after another, each of which takes rows start to stop - 1 of blocks of shards, in slot order.

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
        rows, bounds = slice(self.bounds[first], self.bounds[last]), self.bounds[first : last + 1] - self.bounds[first]
        return Steps(self.shard[rows], self.block[rows], self.start[rows], self.stop[rows], bounds)


class Planned(NamedTuple):
    """Planned steps: rows start to stop - 1 of the blocks with these numbers; all [R].

    Attributes:
        bounds: Of each step in the rows, and the end.
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
            [each - values[first] for each in values[first : last + 1]] for values in (self.bounds, self.instances)
        )
        return Planned(self.number[begin:end], self.start[begin:end], self.stop[begin:end], bounds, instances)


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
        self._waiting.append(Planned(numbers, steps.start, steps.stop, steps.bounds.tolist(), steps.instances.tolist()))
        self._num_steps += len(steps.bounds) - 1

    def peek(self, min_instances: int, max_steps: int) -> Planned:
        """The next steps, until they have so many instances, or those planned together end; there must be one."""
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
