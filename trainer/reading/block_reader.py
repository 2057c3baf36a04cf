"""The instances of steps, gathered from blocks that are read ahead of need (docs/order.md, "Reads").

Steps are planned many together, until their blocks fill half of the memory: while one such stretch
of steps is gathered, the blocks of the next are being read.
"""

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipeline.shards.block import Array, Block, block_instances
from pipeline.shards.records import BlockTable, Shard
from trainer.batches.gather import gather_rows
from trainer.batches.rows import HostMemory
from trainer.batches.unpack import unpack_block
from trainer.order.source import ShardStore
from trainer.reading.ranged_read import BlockRange
from trainer.reading.read_threads import Read, ReadThreads
from trainer.reading.settings import Reading

LOOKAHEAD_STEPS = 512
"""The most steps planned together at first: the first batch is not to wait for long reads of every lane."""

MAX_LOOKAHEAD_STEPS = 8192
"""The most steps planned together after some time: small steps need many for long reads."""

GATHERED_TOKENS = 2**23
"""Steps are gathered together until they have room for so many tokens, some 36 MB."""

MAX_TABLES = 4096
"""The most block tables kept, of some kB each."""

_BLOCK_BITS = 32


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

    @property
    def keys(self) -> Array:
        """[R] shard and block in one number."""
        keys: Array = self.shard << _BLOCK_BITS | self.block
        return keys

    def cut(self, first: int, last: int) -> "Steps":
        """Steps first to last - 1 of these."""
        begin, end = self.bounds[first], self.bounds[last]
        shard, block, start, stop = (column[begin:end] for column in self[:4])
        return Steps(shard, block, start, stop, self.bounds[first : last + 1] - begin)


class Group(NamedTuple):
    """Some steps gathered together; step i is instances bounds[i] to bounds[i + 1] - 1."""

    block: Block
    bounds: list[int]


@dataclass
class ReadCounts:
    """What was asked for of shards, tables apart: blocks again count again, attempts do not."""

    blocks: int = 0
    bytes: int = 0
    requests: int = 0

    def add(self, blocks: BlockRange) -> None:
        """Counts a request for a range of blocks."""
        self.blocks += blocks.stop - blocks.first
        self.bytes += blocks.stop_byte - blocks.start_byte
        self.requests += 1


class Planned:
    """Steps planned together.

    Attributes:
        keys: [K] the different blocks that they take, in order of need.
        which: [R] the block of each row, by its place in `keys`.
        bounds: Where each step begins in the rows, and the end.
        instances: Instances before each step, and of all.
    """

    def __init__(self, parts: Sequence[Steps]) -> None:
        """Joins what was planned at a time."""
        self.start = np.concatenate([each.start for each in parts])
        self.stop = np.concatenate([each.stop for each in parts])
        different, first, which = np.unique(
            np.concatenate([each.keys for each in parts]), return_index=True, return_inverse=True
        )
        by_need = np.argsort(first)
        self.keys: list[int] = different[by_need].tolist()
        self.which = np.argsort(by_need)[which]
        rows = np.concatenate([np.diff(each.bounds) for each in parts])
        self.bounds: list[int] = np.cumsum([0, *rows]).tolist()
        counted = np.concatenate([[0], np.cumsum(self.stop - self.start)])
        self.instances: list[int] = counted[self.bounds].tolist()

    def __len__(self) -> int:
        return len(self.bounds) - 1


class Planner:
    """Takes steps until their blocks fill half of the memory, and more of them each time."""

    def __init__(
        self, shards: Sequence[Shard], steps: Iterator[Steps], half_bytes: int, min_steps: int
    ) -> None:
        """Nothing is taken yet."""
        self._shards, self._steps, self._half_bytes = shards, steps, half_bytes
        self._min_steps = min_steps
        self._lookahead = LOOKAHEAD_STEPS
        self._rest: Steps | None = None
        self.is_exhausted = False

    def next(self) -> Planned | None:
        """The next steps; None at the end."""
        parts: list[Steps] = []
        taken, num_steps, num_bytes, is_enough = np.zeros(0, np.int64), 0, 0.0, False
        while not is_enough:
            steps = self._rest or next(self._steps, None)
            self._rest = None
            if steps is None:
                self.is_exhausted = True
                break
            keys, rows = np.unique(steps.keys, return_index=True)
            is_new = ~np.isin(keys, taken)
            keys, rows = keys[is_new], rows[is_new]
            grown = num_bytes + self._bytes_by_step(keys, rows, steps.bounds)
            enough = (grown >= self._half_bytes) & (
                num_steps + np.arange(1, len(grown) + 1) >= self._min_steps
            )
            enough |= num_steps + np.arange(1, len(grown) + 1) >= max(
                self._lookahead, self._min_steps
            )
            is_enough = bool(enough.any())
            count = int(np.argmax(enough)) + 1 if is_enough else len(grown)
            if count < len(grown):
                self._rest = steps.cut(count, len(grown))
            parts.append(steps.cut(0, count))
            num_steps, num_bytes = num_steps + count, float(grown[count - 1])
            taken = np.union1d(taken, keys)
        self._lookahead = min(2 * self._lookahead, MAX_LOOKAHEAD_STEPS)
        return Planned(parts) if parts else None

    def _bytes_by_step(self, keys: Array, rows: Array, bounds: Array) -> Array:
        """Memory that new blocks take up to each step: twice their stored bytes, a shard's mean."""
        shards, place = np.unique(keys >> _BLOCK_BITS, return_inverse=True)
        means = [_mean_bytes(self._shards[shard]) for shard in shards.tolist()]
        order = np.argsort(rows)
        added = np.concatenate([[0.0], np.cumsum(2 * np.array(means)[place][order])])
        grown: Array = added[np.searchsorted(rows[order], bounds[1:])]
        return grown


class BlockReader:
    """Iterator over steps: the instances of each as one block, in slot order.

    A block that several stretches of steps take stays between them, so one that serves many steps of
    a lane is fetched and decoded once. Small steps are gathered together.

    Attributes:
        counts: Requests so far.
    """

    def __init__(
        self,
        store: ShardStore,
        shards: Sequence[Shard],
        steps: Iterator[Steps],
        settings: Reading,
        min_steps: int = 2,
        memory: HostMemory | None = None,
        counts: ReadCounts | None = None,
    ) -> None:
        """Nothing is read before the first step is asked for.

        Args:
            store: Where the shards are.
            shards: Those that steps refer to by index, all of one length; more may be added at the
                end at any time.
            steps: The steps in their order, some at a time.
            settings: Memory, threads and limits.
            min_steps: Steps planned together whatever the memory, so that every lane is visited.
            memory: Where steps are gathered.
            counts: Counts requests.
        """
        self._store, self._shards, self._settings = store, shards, settings
        self._gathered = -(-GATHERED_TOKENS // shards[0].seq_len)
        self._planner = Planner(shards, steps, settings.buffer_bytes // 2, min_steps)
        self._threads = threads = ReadThreads(store, settings)
        self._tables = lru_cache(maxsize=MAX_TABLES)(
            lambda shard: threads.read_table(shards[shard])
        )
        self._memory = memory or HostMemory()
        self.counts = counts or ReadCounts()
        self._reads: dict[int, Read] = {}  # what brings each block that is not unpacked
        self._blocks: dict[int, Block] = {}
        self._close = weakref.finalize(self, self._threads.close)

    def __iter__(self) -> Iterator[Block]:
        """The instances of each step.

        Raises:
            FileNotFoundError: A shard is not there.
            ShardReadError: A shard could not be read in full.
        """
        for group in self.groups():
            for start, stop in pairwise(group.bounds):
                yield group.block.slice(start, stop)

    def groups(self) -> Iterator[Group]:
        """The same steps, those together that are gathered together; raises the same."""
        planned = self._plan()
        while planned is not None:
            done, following = 0, None
            while done < len(planned):
                if following is None and 2 * (done + 1) >= len(planned):
                    following = self._plan()
                group = self._gather(planned, done)
                done += len(group.bounds) - 1
                yield group
            self._release(planned, following)
            planned = following

    def close(self) -> None:
        """Stops the threads; who waits for blocks on their way gets a CancelledError."""
        self._close()

    def _plan(self) -> Planned | None:
        """Plans steps and asks for their blocks, but for those that are held or asked for already."""
        planned = self._planner.next()
        if planned is None:
            return None
        new = [key for key in planned.keys if key not in self._blocks and key not in self._reads]
        for shard in dict.fromkeys(key >> _BLOCK_BITS for key in new):
            self._tables(shard)  # of all shards at once: each is a round trip
        for read in join_blocks(new, self._shards, self._table, self._settings.max_read_bytes):
            count = read.blocks.stop - read.blocks.first
            self._reads |= dict.fromkeys(range(read.first_key, read.first_key + count), read)
            self.counts.add(read.blocks)
            self._threads.submit(read)
        return planned

    def _table(self, shard: int) -> BlockTable:
        return self._tables(shard).result()

    def _gather(self, planned: Planned, first: int) -> Group:
        """Gathers a step, and with it those after it whose blocks are there, up to a quarter of all."""
        most = len(planned) if self._planner.is_exhausted else first + max(1, len(planned) // 4)
        wanted = planned.instances[first] + self._gathered
        last = bisect_left(planned.instances, wanted, first + 1)
        last = self._unpack(planned, first, min(last, most, len(planned)))
        rows = slice(planned.bounds[first], planned.bounds[last])
        different, which = np.unique(planned.which[rows], return_inverse=True)
        blocks = [self._blocks[planned.keys[number]] for number in different.tolist()]
        block = gather_rows(blocks, which, planned.start[rows], planned.stop[rows], self._memory)
        begin = planned.instances[first]
        return Group(block, [each - begin for each in planned.instances[first : last + 1]])

    def _unpack(self, planned: Planned, first: int, last: int) -> int:
        """Unpacks the blocks of some steps.

        Returns:
            Where the steps end whose blocks are unpacked. Only those of the first are waited for.
        """
        # By the one thread that needs them: in eight threads it cost 3 times the CPU, in turns for
        # the lock.
        begin = planned.bounds[first]
        numbers = planned.which[begin : planned.bounds[last]]
        different, rows = np.unique(numbers, return_index=True)
        by_need = np.argsort(rows)
        for number, row in zip(different[by_need].tolist(), rows[by_need].tolist(), strict=True):
            key = planned.keys[number]
            if key in self._blocks:
                continue
            read = self._reads[key]
            if begin + row >= planned.bounds[first + 1] and not _is_here(read):
                return bisect_right(planned.bounds, begin + row) - 1
            self._blocks[key] = self._unpack_one(read, key - read.first_key)
            del self._reads[key]
        return last

    def _unpack_one(self, read: Read, index: int) -> Block:
        shard, table, place = read.blocks.shard, read.blocks.table, read.blocks.first + index
        where = f"{self._store.locate(shard.name)}, block {place} at byte {table.offset[place]}"
        body = read.bodies.result()[index]
        block = unpack_block(body, table, place, shard, self._store.vocab_size, where)
        other = next(iter(self._blocks.values()), block)
        found, expected = block.input_ids.dtype, other.input_ids.dtype
        if found != expected:
            raise ValueError(
                f"{where}: tokens of {found} among blocks of {expected}; verify the dataset"
            )
        return block

    def _release(self, planned: Planned, following: Planned | None) -> None:
        """Drops the blocks of steps that are done, but for those that the following ones take."""
        kept = set(following.keys) if following is not None else set()
        for key in planned.keys:
            if key not in kept:
                del self._blocks[key]


def join_blocks(
    wanted: Iterable[int],
    shards: Sequence[Shard],
    table_of: Callable[[int], BlockTable],
    max_read_bytes: int,
) -> list[Read]:
    """What reads the blocks.

    One read takes in the next block of its shard while it is not too long.

    Args:
        wanted: Blocks by `Steps.keys`, in order of need, none twice.
        shards: Shards by their numbers in the keys.
        table_of: The block table of a shard.
        max_read_bytes: The most bytes of a read of more than one block.
    """
    reads: list[Read] = []
    endings: dict[int, Read] = {}
    for key in wanted:
        shard, block = key >> _BLOCK_BITS, key % (1 << _BLOCK_BITS)
        read = endings.pop(key, None)
        if read is None or not _fits(read.blocks, block, max_read_bytes):
            read = Read(BlockRange(shards[shard], table_of(shard), block, block), key, Future())
            reads.append(read)
        read.blocks = read.blocks._replace(stop=block + 1)
        endings[key + 1] = read
    return reads


def _fits(blocks: BlockRange, last: int, max_read_bytes: int) -> bool:
    """Whether a range is not too long with another block at its end."""
    end = blocks.table.offset[last] + blocks.table.size[last]
    return bool(end - blocks.start_byte <= max_read_bytes)


def _mean_bytes(shard: Shard) -> float:
    return shard.num_bytes / max(1, -(-shard.instances // block_instances(shard.seq_len)))


def _is_here(read: Read) -> bool:
    return read.bodies.done() and not read.bodies.exception()
