"""Blocks read ahead of need, in the order a plan needs them (docs/order.md, "Reads").

May import the stdlib, numpy, pipeline.shards and this package.
"""

import contextlib
import mmap
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Array, Block, block_instances
from pipeline.shards.records import BlockTable, Shard
from trainer.stream.arena import Arena
from trainer.stream.host_memory import HostMemory
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


class _Wanted(NamedTuple):
    """A block to be read: its number among all, its shard and its place there."""

    number: int
    shard: int
    block: int


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

    Nothing is done for each row of a step but by numpy and Arrow: with many lanes and small batches a step is one row
    of each of hundreds of blocks. Blocks are numbered through all shards, so that arrays tell of each whether it is
    held and where.
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
        self._first_number = np.zeros(1, np.int64)
        self._last_use = np.zeros(0, np.int64)  # counted from 1; 0 where a block is not held
        self._slot = np.zeros(0, np.int32)  # in the arena, from 1; 0 where a block is not decoded
        self._cost_bytes = np.zeros(0, np.int64)  # of a block that is held
        self._arena = Arena(block_instances(shards[0].seq_len))
        self._held: dict[int, Read] = {}  # by the number of each block that some planned step needs
        self._held_bytes = 0
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
        parts: list[tuple[Array, Array, Array]] = []
        bounds, done = [0], []
        while bounds[-1] < GATHERED_INSTANCES:
            if self._runs_low():
                self._plan_ahead()
            if not self._planned:
                break
            missing = self._missing(self._planned[0])
            if parts and not _are_here(missing):
                break
            rows = self._planned.popleft()
            self._decode(missing)
            parts.append((self._slot[rows.number], rows.start, rows.stop))
            bounds.append(bounds[-1] + rows.num_instances)
            done += self._let_go(rows)
        if not parts:
            return None
        slots, starts, stops = (np.concatenate(column) for column in zip(*parts, strict=True))
        block = self._arena.gather(slots - 1, starts, stops, self._memory)
        for slot in done:
            self._arena.free(slot)
        return Group(block, bounds)

    def _runs_low(self) -> bool:
        num_planned = len(self._planned)
        half_empty = num_planned <= LOOKAHEAD_STEPS // 2 and self._held_bytes <= self._settings.buffer_bytes // 2
        return half_empty or num_planned < self._min_steps

    def _is_full(self) -> bool:
        num_planned = len(self._planned)
        enough = num_planned >= LOOKAHEAD_STEPS or self._held_bytes >= self._settings.buffer_bytes
        return enough and num_planned >= self._min_steps

    def _plan_ahead(self) -> None:
        new: list[_Wanted] = []
        while not self._is_full():
            step = next(self._steps, None)
            if step is None:
                break
            shard, block, start, stop = step.T
            if len(self._first_number) <= len(self._shards):
                self._number_blocks()
            rows = _Rows(self._first_number[shard] + block, start, stop, int((stop - start).sum()))
            self._planned.append(rows)
            last_use = self._last_use[rows.number]
            self._last_use[rows.number] = self._num_taken + len(self._planned)
            if np.count_nonzero(last_use) < len(last_use):
                unknown = last_use == 0
                new += self._hold(rows.number[unknown], shard[unknown], block[unknown])
        for read in self._join(new):
            self.counts.add(read.blocks)
            self._threads.submit(read)

    def _number_blocks(self) -> None:
        """Numbers the blocks of all shards, those of shards added since after the others."""
        added = self._shards[len(self._first_number) - 1 :]
        counts = [-(-shard.instances // block_instances(shard.seq_len)) for shard in added]
        self._first_number = np.concatenate([self._first_number, self._first_number[-1] + np.cumsum(counts)])
        self._last_use, self._slot, self._cost_bytes = (
            _lengthen(each, self._first_number[-1]) for each in (self._last_use, self._slot, self._cost_bytes)
        )

    def _hold(self, numbers: Array, shards: Array, blocks: Array) -> "list[_Wanted]":
        """Blocks to be read. One costs twice its stored bytes: those of a request stay until its last is decoded."""
        for shard in np.unique(shards).tolist():
            self._asked_table(shard)  # of all shards at once: each is a round trip
        wanted = []
        for number, shard, block in dict.fromkeys(zip(numbers.tolist(), shards.tolist(), blocks.tolist(), strict=True)):
            self._cost_bytes[number] = cost_bytes = 2 * int(self._table(shard).size[block])
            self._held_bytes += cost_bytes
            wanted.append(_Wanted(number, shard, block))
        return wanted

    def _let_go(self, rows: _Rows) -> list[int]:
        """Drops the blocks whose last planned use is this step, the next one to take. Returns their slots."""
        self._num_taken += 1
        is_last = self._last_use[rows.number] == self._num_taken
        if not np.count_nonzero(is_last):
            return []
        numbers = list({*rows.number[is_last].tolist()})
        slots: list[int] = (self._slot[numbers] - 1).tolist()
        self._held_bytes -= sum(self._cost_bytes[numbers].tolist())
        self._last_use[numbers] = self._slot[numbers] = 0
        for number in numbers:
            del self._held[number]
        return slots

    def _table(self, shard: int) -> BlockTable:
        return self._asked_table(shard).result()

    def _missing(self, rows: _Rows) -> dict[int, Read]:
        """The blocks of a step that are not decoded yet, and what brings them."""
        slots = self._slot[rows.number]
        if np.count_nonzero(slots) == len(slots):
            return {}
        return {number: self._held[number] for number in rows.number[slots == 0].tolist()}

    def _decode(self, missing: dict[int, Read]) -> None:
        # Decoded by the one thread that needs it: in eight threads it cost 3 times the CPU, in turns for the lock.
        for number, read in missing.items():
            self._slot[number] = self._put(read, number - read.first_number) + 1

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

    def _join(self, new: "list[_Wanted]") -> "list[Read]":
        """Reads for new blocks, in order of need; one takes in the next block of its shard while it is not too long."""
        reads: list[Read] = []
        endings: dict[tuple[int, int], Read] = {}
        for number, shard, block in new:
            read = endings.pop((shard, block), None)
            if read is None or not self._fits(read.blocks, block):
                table = self._table(shard)
                read = Read(BlockRange(self._shards[shard], table, block, block), number, Future())
                reads.append(read)
            read.blocks = read.blocks._replace(stop=block + 1)
            self._held[number] = endings[shard, block + 1] = read
        return reads

    def _fits(self, blocks: BlockRange, last: int) -> bool:
        """Whether a range is not too long with another block at its end."""
        end = blocks.table.offset[last] + blocks.table.size[last]
        return bool(end - blocks.start_byte <= self._settings.max_read_bytes)


def _are_here(missing: dict[int, Read]) -> bool:
    return all(read.bodies.done() and not read.bodies.exception() for read in missing.values())


def _lengthen(values: Array, size: int) -> Array:
    """The values and then zeros, of which the system only keeps what is written: there may be millions of blocks.

    Not from numpy, whose large arrays ask for pages of 2 MiB: a few blocks of each lane would touch most of them.
    """
    pages = mmap.mmap(-1, max(1, size * values.itemsize))
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    longer: Array = np.frombuffer(pages, values.dtype, size)
    longer[: len(values)] = values
    return longer
