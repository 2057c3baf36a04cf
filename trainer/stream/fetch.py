"""Blocks read ahead of need, in the order a plan needs them (docs/order.md, "Reads").

May import the stdlib, numpy, pipeline.shards and this package.
"""

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Array, Block, block_instances
from pipeline.shards.records import BlockTable, Shard
from trainer.stream.arena import Arena
from trainer.stream.held_blocks import HeldBlocks
from trainer.stream.host_memory import HostMemory
from trainer.stream.join_blocks import Wanted, join_blocks
from trainer.stream.planned import Planned, StepQueue, Steps
from trainer.stream.ranged_read import BlockRange, ReadSettings, check_block, read_batch_checked
from trainer.stream.read_threads import Read, ReadThreads
from trainer.stream.source import ShardStore

LOOKAHEAD_STEPS = 512
"""Planned ahead at most at first, whatever the memory: the first batch is not to wait for long reads of every lane."""

MAX_LOOKAHEAD_STEPS = 8192
"""Planned ahead at most after some time: small steps need many for a lane's blocks to join into long reads."""

PLANNED_INSTANCES = 2**15
"""Steps are planned together up to this size."""

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
        steps: Iterator[Steps],
        settings: ReadSettings,
        min_steps: int = 2,
        memory: HostMemory | None = None,
    ) -> None:
        """Nothing is read before the first step is asked for.

        Args:
            dataset: Where the shards are.
            shards: Those that steps refer to by index, all of one length; more may be added at the end at any time.
            steps: Of shards by their index, some at a time.
            settings: Memory, threads and patience.
            min_steps: Steps kept planned whatever the memory, so that no block is let go between two uses.
            memory: Where steps are gathered.
        """
        self.counts = ReadCounts()
        self._dataset = dataset
        self._shards = shards
        self._seq_len = shards[0].seq_len
        self._steps = steps
        self._settings = settings
        self._min_steps = min_steps
        self._unplanned: Steps | None = None  # taken from steps, but not planned yet
        self._lookahead = LOOKAHEAD_STEPS
        self._is_exhausted = False
        self._planned = StepQueue()
        self._gathered: deque[Block] = deque()
        self._memory = memory or HostMemory()
        self._num_taken = 0
        self._blocks = HeldBlocks()
        self._arena = Arena(block_instances(self._seq_len))
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
        if self._runs_low():
            self._plan_ahead()
        if not self._planned:
            return None
        # Those that stay planned keep the blocks that they share with these.
        max_steps = len(self._planned) if self._is_exhausted else max(1, len(self._planned) - self._min_steps + 1)
        steps = self._planned.peek(GATHERED_INSTANCES, max_steps)
        if (num_steps := self._decode(steps)) < len(steps.bounds) - 1:
            steps = steps.cut(0, num_steps)
        self._planned.drop(num_steps)
        self._num_taken += num_steps
        slots = self._blocks.slot[steps.number] - 1
        done = self._blocks.let_go(steps.number, self._num_taken)
        block = self._arena.gather(slots, steps.start, steps.stop, self._memory)
        for slot in done:
            self._arena.free(slot)
        return Group(block, steps.instances)

    def _decode(self, steps: Planned) -> int:
        """Decodes the blocks of some steps.

        Returns:
            The steps whose blocks are decoded. Only those of the first step are waited for.
        """
        # Decoded by the one thread that needs it: in eight threads it cost 3 times the CPU, in turns for the lock.
        reads, slot = self._blocks.reads, self._blocks.slot
        due: dict[int, Read] = {}  # of which the bytes are here
        missing = np.flatnonzero(slot[steps.number] == 0)
        num_steps = len(steps.bounds) - 1
        for row, number in zip(missing.tolist(), steps.number[missing].tolist(), strict=True):
            if slot[number]:  # a block may be in several rows
                continue
            read = reads[number]
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

    def _runs_low(self) -> bool:
        if self._is_exhausted:
            return False
        num_planned, num_bytes = len(self._planned), self._blocks.num_bytes
        half_empty = num_planned <= self._lookahead // 2 and num_bytes <= self._settings.buffer_bytes // 2
        return half_empty or num_planned < self._min_steps

    def _is_enough(self, num_planned: Array, num_bytes: Array) -> Array:
        """Whether no more is planned, with so many steps planned and bytes held [S]."""
        enough = (num_planned >= self._lookahead) | (num_bytes >= self._settings.buffer_bytes)
        return enough & (num_planned >= self._min_steps)

    def _plan_ahead(self) -> None:
        new: list[Wanted] = []
        is_enough = False
        while not is_enough:
            steps = self._unplanned or next(self._steps, None)
            if steps is None:
                self._is_exhausted = True
                break
            is_enough, wanted = self._plan(steps)
            new += wanted
        for read in join_blocks(new, self._shards, self._table, self._settings.max_read_bytes):
            self._blocks.expect(read)
            self.counts.add(read.blocks)
            self._threads.submit(read)
        self._lookahead = min(2 * self._lookahead, MAX_LOOKAHEAD_STEPS)

    def _plan(self, steps: Steps) -> tuple[bool, list[Wanted]]:
        """Plans some of the steps, and keeps the others for later. Returns whether it is enough, and what to read."""
        most = max(1, int(np.searchsorted(steps.instances, PLANNED_INSTANCES, side="right")) - 1)
        bounds = steps.bounds[: most + 1]
        shard, block = (column[: bounds[-1]] for column in (steps.shard, steps.block))
        numbers = self._blocks.number(self._shards, shard, block)
        rows = self._blocks.first_rows(numbers)
        cost_bytes = self._cost_bytes(shard[rows], block[rows])
        num_bytes = np.concatenate([[0], np.cumsum(cost_bytes)])[np.searchsorted(rows, bounds[1:])]
        num_planned = np.arange(1, len(bounds)) + len(self._planned)
        is_enough = self._is_enough(num_planned, self._blocks.num_bytes + num_bytes)
        num_steps = int(np.argmax(is_enough)) + 1 if is_enough.any() else len(bounds) - 1
        now = steps.cut(0, num_steps)
        self._unplanned = steps.cut(num_steps, len(steps.bounds) - 1)
        last_use = np.repeat(self._num_taken + num_planned[:num_steps], np.diff(now.bounds))
        self._blocks.use(numbers[: len(last_use)], last_use)
        self._planned.add(numbers[: len(last_use)], now)
        rows = rows[: np.searchsorted(rows, len(last_use))]
        self._blocks.hold(numbers[rows], cost_bytes[: len(rows)])
        wanted = map(Wanted, *(column[rows].tolist() for column in (numbers, shard, block)))
        return bool(is_enough[num_steps - 1]), list(wanted)

    def _cost_bytes(self, shards: Array, blocks: Array) -> Array:
        """What blocks [B] cost: twice their stored bytes, as those of a request stay until its last is decoded."""
        different, index = np.unique(shards, return_inverse=True)
        for shard in different.tolist():
            self._asked_table(shard)  # of all shards at once: each is a round trip
        cost = np.zeros(len(shards), np.int64)
        for place, shard in enumerate(different.tolist()):
            cost[index == place] = 2 * self._table(shard).size[blocks[index == place]]
        return cost

    def _table(self, shard: int) -> BlockTable:
        return self._asked_table(shard).result()

    def _put(self, due: Mapping[int, Read]) -> None:
        """Decodes blocks, by their numbers, into the arena, checked against the tables."""
        places = [(read, number - read.first_number) for number, read in due.items()]
        tables = [(read.blocks.table, read.blocks.first + index) for read, index in places]
        counts = np.array([(table.instances[block], table.tokens[block]) for table, block in tables], np.int64)
        bodies = []
        for read, index in places:
            held = read.bodies.result()
            bodies.append(held[index])
            held[index] = _DECODED
        slots: list[int] = []
        while len(slots) < len(bodies):
            rest = slice(len(slots), None)
            slots += self._arena.put_stored(bodies[rest], counts[rest], self._seq_len, self._dataset.vocab_size)
            if len(slots) < len(bodies):
                slots.append(self._put_checked(bodies[len(slots)], *places[len(slots)]))
        self._blocks.slot[list(due)] = np.array(slots, np.int32) + 1

    def _put_checked(self, body: memoryview, read: Read, index: int) -> int:
        """What is not compiled: says what is wrong with a block."""
        shard, table, block = read.blocks.shard, read.blocks.table, read.blocks.first + index
        where = f"{self._dataset.locate(shard.name)}, block {block} at byte {table.offset[block]}"
        batch = read_batch_checked(body, table, block, where)
        return self._arena.put(check_block(batch, shard, self._dataset.vocab_size, where), where)


def _is_here(read: Read) -> bool:
    return read.bodies.done() and not read.bodies.exception()
