"""The instances of steps, gathered from blocks read ahead of need (docs/order.md, "Reads")."""

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Block, block_instances
from pipeline.shards.records import Shard
from trainer.batches.arena import Arena, unpack_block
from trainer.batches.rows import HostMemory
from trainer.order.source import ShardStore
from trainer.reading.planned import Planned, Steps
from trainer.reading.read_ahead import ReadAhead, ReadCounts
from trainer.reading.read_threads import Read, ReadThreads
from trainer.reading.settings import ReadSettings

GATHERED_TOKENS = 2**23
"""Steps are gathered together until they have room for so many tokens, some 36 MB.

The interpreter then has little to do, and most blocks are used up as soon as they are decoded.
"""

_DECODED = memoryview(b"")
"""Stands for a block's bytes when they are no longer wanted."""


def gathered_instances(seq_len: int) -> int:
    """Steps are gathered together until they have so many instances."""
    return -(-GATHERED_TOKENS // seq_len)


class Group(NamedTuple):
    """Some steps gathered together; step i is instances bounds[i] to bounds[i + 1] - 1."""

    block: Block
    bounds: list[int]


class BlockWindow:
    """Iterator over steps: the instances of each as one block, in slot order.

    What is read when, `ReadAhead` says. A block stays from its first to its last planned use, so
    one that serves many steps of a lane is fetched and decoded once. Small steps are gathered
    together, so that what is done for each of them is little.

    Attributes:
        counts: Requests so far.
    """

    def __init__(
        self,
        dataset: ShardStore,
        shards: Sequence[Shard],
        steps: Iterator[Steps],
        settings: ReadSettings,
        min_steps: int = 2,
        memory: HostMemory | None = None,
        counts: ReadCounts | None = None,
    ) -> None:
        """Nothing is read before the first step is asked for.

        Args:
            dataset: Where the shards are.
            shards: Those that steps refer to by index, all of one length; more may be added at the
                end at any time.
            steps: The steps in their order, some at a time.
            settings: Memory, threads and patience.
            min_steps: Steps kept planned whatever the memory, so that no block is let go between
                two uses.
            memory: Where steps are gathered.
            counts: Counts requests.
        """
        self._dataset = dataset
        self._seq_len = shards[0].seq_len
        self._threads = ReadThreads(dataset, settings)
        self.counts = counts or ReadCounts()
        self._ahead = ReadAhead(shards, steps, settings, min_steps, self.counts, self._threads)
        self._blocks = self._ahead.blocks
        self._arena = Arena(block_instances(self._seq_len))
        self._gathered: deque[Block] = deque()
        self._memory = memory or HostMemory()
        self._close = weakref.finalize(self, self._threads.close)

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        """The next step's instances.

        Raises:
            FileNotFoundError: A shard is not there.
            ShardReadError: A shard could not be read in full.
        """
        if not self._gathered:
            if (group := self._gather_steps()) is None:
                raise StopIteration
            self._gathered.extend(
                group.block.slice(start, stop) for start, stop in pairwise(group.bounds)
            )
        return self._gathered.popleft()

    def groups(self) -> Iterator[Group]:
        """The same steps, those together that are gathered together; raises the same."""
        while (group := self._gather_steps()) is not None:
            yield group

    def close(self) -> None:
        """Stops the threads; who waits for blocks on their way gets a CancelledError."""
        self._close()

    def _gather_steps(self) -> Group | None:
        """Gathers the next step, and with it those after it whose blocks are there.

        Small steps cost less together.
        """
        steps = self._ahead.next_steps(gathered_instances(self._seq_len))
        if steps is None:
            return None
        if (num_steps := self._decode(steps)) < len(steps.bounds) - 1:
            steps = steps.cut(0, num_steps)
        slots = self._blocks.slot[steps.number] - 1
        done = self._ahead.take(steps)
        block = self._arena.gather(slots, steps.start, steps.stop, self._memory)
        for slot in done:
            self._arena.free(slot)
        return Group(block, steps.instances)

    def _decode(self, steps: Planned) -> int:
        """Decodes the blocks of some steps.

        Returns:
            The steps whose blocks are decoded. Only those of the first step are waited for.
        """
        # Decoded by the one thread that needs it: in eight threads it cost 3 times the CPU, in
        # turns for the lock.
        due: dict[int, Read] = {}  # of which the bytes are here
        rows = self._blocks.undecoded(steps.number)
        num_steps = len(steps.bounds) - 1
        for row, number in zip(rows.tolist(), steps.number[rows].tolist(), strict=True):
            read = self._blocks.reads[number]
            if not _is_here(read):
                if row >= steps.bounds[1]:
                    num_steps = bisect_right(steps.bounds, row) - 1
                    break
                self._put(due)
                due.clear()
                read.bodies.result()
            due[number] = read
        self._put(due)
        return num_steps

    def _put(self, due: Mapping[int, Read]) -> None:
        """Decodes blocks, by their numbers, into the arena, checked against the tables."""
        slots = []
        for number, read in due.items():
            index, bodies = number - read.first_number, read.bodies.result()
            shard, table, place = read.blocks.shard, read.blocks.table, read.blocks.first + index
            where = (
                f"{self._dataset.locate(shard.name)}, block {place} at byte {table.offset[place]}"
            )
            vocab_size = self._dataset.vocab_size
            block = unpack_block(bodies[index], table, place, shard, vocab_size, where)
            bodies[index] = _DECODED
            slots.append(self._arena.put(block, where))
        self._blocks.slot[list(due)] = np.array(slots, np.int32) + 1


def _is_here(read: Read) -> bool:
    return read.bodies.done() and not read.bodies.exception()
