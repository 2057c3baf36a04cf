"""Blocks read ahead of need, in the order a plan needs them (docs/order.md, "Reads").

May import the stdlib, numpy, pipeline.shards and this package.
"""

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Array, Block, block_instances
from pipeline.shards.records import BlockTable, Shard
from trainer.stream.arena import Arena
from trainer.stream.held_blocks import HeldBlocks
from trainer.stream.host_memory import HostMemory
from trainer.stream.join_blocks import Wanted, join_blocks
from trainer.stream.ranged_read import BlockRange, ReadSettings, check_block, read_batch_checked
from trainer.stream.read_threads import Read, ReadThreads
from trainer.stream.source import ShardStore

LOOKAHEAD_STEPS = 512
"""Planned ahead at most, whatever the memory: enough to join a lane's blocks into long reads, and quick to plan."""

GATHERED_INSTANCES = 4096
"""Steps are gathered together up to this size."""

MAX_TABLES = 4096
"""Block tables kept: some kB each."""

_DECODED = memoryview(b"")
"""Stands for a block's bytes when they are no longer wanted."""


@dataclass
class ReadCounts:
    """What was read so far. Blocks fetched twice count twice."""

    blocks: int = 0
    bytes: int = 0
    requests: int = 0

    def add(self, blocks: BlockRange) -> None:
        """Counts a request for a range of blocks."""
        self.blocks += blocks.stop - blocks.first
        self.bytes += blocks.stop_byte - blocks.start_byte
        self.requests += 1


class _Rows(NamedTuple):
    """What a step takes: rows start to stop - 1 of blocks, which are named by their numbers; all [R]."""

    number: Array
    start: Array
    stop: Array
    num_instances: int


class Group(NamedTuple):
    """Some steps gathered together: step i is instances bounds[i] to bounds[i + 1] - 1 of the block."""

    block: Block
    bounds: list[int]


class BlockWindow:
    """Iterator over steps: the instances of each as one block, in slot order.

    Plans ahead until the planned steps' blocks fill buffer_bytes, reads all new ones in order of need, consecutive
    blocks of a shard by one request, and begins again once half of them are let go. A block stays from its first to
    its last planned use, so one that serves many steps of a lane is fetched and decoded once. Memory is bounded by
    buffer_bytes or by what `min_steps` steps need, whichever is more.

    Small steps are gathered together, so that what is done for each of them is little.
    """

    def __init__(
        self,
        dataset: ShardStore,
        shards: Sequence[Shard],
        steps: Iterator[Array],
        settings: ReadSettings,
        min_steps: int = 2,
        memory: HostMemory | None = None,
    ) -> None:
        """Nothing is read before the first step is asked for.

        Args:
            dataset: Where the shards are.
            shards: Those that steps refer to by index, all of one length; more may be added at the end at any time.
            steps: One array [R, 4] a step: shard, block, and start and stop inside the block, in slot order.
            settings: Memory, threads and patience.
            min_steps: Steps kept planned whatever the memory, so that no block is let go between two uses.
            memory: Where steps are gathered.
        """
        self.counts = ReadCounts()
        self._dataset = dataset
        self._shards = shards
        self._steps = steps
        self._settings = settings
        self._min_steps = min_steps
        self._planned: deque[_Rows] = deque()
        self._gathered: deque[Block] = deque()
        self._memory = memory or HostMemory()
        self._num_taken = 0
        self._blocks = HeldBlocks()
        self._arena = Arena(block_instances(shards[0].seq_len))
        self._threads = ReadThreads(dataset, settings)
        threads = self._threads
        self._asked_table = lru_cache(maxsize=MAX_TABLES)(lambda shard: threads.read_table(shards[shard]))
        weakref.finalize(self, self._threads.close)

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
            self._gathered.extend(group.block.slice(start, stop) for start, stop in pairwise(group.bounds))
        return self._gathered.popleft()

    def groups(self) -> Iterator[Group]:
        """The same steps, those together that are gathered together; raises the same."""
        while (group := self._gather_steps()) is not None:
            yield group

    def close(self) -> None:
        """Stops the threads; blocks on their way are given up."""
        self._threads.close()

    def _gather_steps(self) -> Group | None:
        """Gathers the next step, and with it those after it whose blocks are there: small ones cost less together."""
        steps = self._next_steps()
        if not steps:
            return None
        numbers = np.concatenate([rows.number for rows in steps])
        bounds = list(accumulate((rows.num_instances for rows in steps), initial=0))
        num_rows = list(accumulate(len(rows.number) for rows in steps))
        if (num_steps := self._decode(numbers, num_rows)) < len(steps):
            self._put_back(steps[num_steps:])
            numbers, bounds = numbers[: num_rows[num_steps - 1]], bounds[: num_steps + 1]
        starts, stops = (np.concatenate(column) for column in list(zip(*steps[:num_steps], strict=True))[1:3])
        slots = self._blocks.slot[numbers] - 1
        done = self._blocks.let_go(numbers, self._num_taken)
        block = self._arena.gather(slots, starts, stops, self._memory)
        for slot in done:
            self._arena.free(slot)
        return Group(block, bounds)

    def _next_steps(self) -> list[_Rows]:
        """Takes the next steps, up to GATHERED_INSTANCES; more are planned where these run low."""
        taken: list[_Rows] = []
        num_instances = 0
        while num_instances < GATHERED_INSTANCES:
            if self._runs_low():
                if taken and self._blocks.num_bytes >= self._settings.buffer_bytes:
                    break  # what is taken is to be let go first
                self._plan_ahead()
            if not self._planned:
                break
            taken.append(self._planned.popleft())
            self._num_taken += 1
            num_instances += taken[-1].num_instances
        return taken

    def _put_back(self, steps: list[_Rows]) -> None:
        self._planned.extendleft(reversed(steps))
        self._num_taken -= len(steps)

    def _decode(self, numbers: Array, num_rows: list[int]) -> int:
        """Decodes the blocks [R] of some steps, of which the first n have num_rows[n - 1] rows.

        Returns:
            The steps whose blocks are decoded. Only those of the first step are waited for.
        """
        # Decoded by the one thread that needs it: in eight threads it cost 3 times the CPU, in turns for the lock.
        slot, reads = self._blocks.slot, self._blocks.reads
        missing = np.flatnonzero(slot[numbers] == 0)
        for row, number in zip(missing.tolist(), numbers[missing].tolist(), strict=True):
            read = reads[number]
            if row >= num_rows[0] and not _is_here(read):
                return bisect_right(num_rows, row)
            if not slot[number]:  # a block may be in several rows
                slot[number] = self._put(read, number - read.first_number) + 1
        return len(num_rows)

    def _runs_low(self) -> bool:
        num_planned = len(self._planned)
        half_empty = num_planned <= LOOKAHEAD_STEPS // 2 and self._blocks.num_bytes <= self._settings.buffer_bytes // 2
        return half_empty or num_planned < self._min_steps

    def _is_full(self) -> bool:
        num_planned = len(self._planned)
        enough = num_planned >= LOOKAHEAD_STEPS or self._blocks.num_bytes >= self._settings.buffer_bytes
        return enough and num_planned >= self._min_steps

    def _plan_ahead(self) -> None:
        new: list[Wanted] = []
        while not self._is_full():
            step = next(self._steps, None)
            if step is None:
                break
            shard, block, start, stop = step.T
            numbers = self._blocks.number(self._shards, shard, block)
            self._planned.append(_Rows(numbers, start, stop, int((stop - start).sum())))
            unknown = self._blocks.use(numbers, self._num_taken + len(self._planned))
            if unknown is not None:
                new += self._hold(numbers[unknown], shard[unknown], block[unknown])
        for read in join_blocks(new, self._shards, self._table, self._settings.max_read_bytes):
            self._blocks.expect(read)
            self.counts.add(read.blocks)
            self._threads.submit(read)

    def _hold(self, numbers: Array, shards: Array, blocks: Array) -> list[Wanted]:
        """Blocks to be read. One costs twice its stored bytes: those of a request stay until its last is decoded."""
        for shard in np.unique(shards).tolist():
            self._asked_table(shard)  # of all shards at once: each is a round trip
        wanted = []
        for number, shard, block in dict.fromkeys(zip(numbers.tolist(), shards.tolist(), blocks.tolist(), strict=True)):
            self._blocks.hold(number, 2 * int(self._table(shard).size[block]))
            wanted.append(Wanted(number, shard, block))
        return wanted

    def _table(self, shard: int) -> BlockTable:
        return self._asked_table(shard).result()

    def _put(self, read: Read, index: int) -> int:
        """Decodes a block of a read into the arena, checked against the tables."""
        shard, table, block = read.blocks.shard, read.blocks.table, read.blocks.first + index
        bodies = read.bodies.result()
        body, bodies[index] = bodies[index], _DECODED
        counts, vocab_size = (int(table.instances[block]), int(table.tokens[block])), self._dataset.vocab_size
        if (slot := self._arena.put_stored(body, *counts, shard.seq_len, vocab_size)) is not None:
            return slot
        where = f"{self._dataset.locate(shard.name)}, block {block} at byte {table.offset[block]}"
        batch = read_batch_checked(body, table, block, where)
        return self._arena.put(check_block(batch, shard, vocab_size, where), where)


def _is_here(read: Read) -> bool:
    return read.bodies.done() and not read.bodies.exception()
