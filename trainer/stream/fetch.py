"""Blocks read ahead of need, in the order a plan needs them (docs/order.md, "Reads").

May import the stdlib, numpy, pipeline.shards and this package. Reading is done by daemon threads of this process:
a live filesystem does not survive a fork, and daemons do not keep the interpreter from exiting.
"""

import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial

from pipeline.shards.block import Array, Block
from pipeline.shards.manifest import Shard
from trainer.stream.packing import BlockSlice
from trainer.stream.ranged_read import BlockRange, ReadSettings, decode_checked, read_blocks, read_table
from trainer.stream.source import ShardStore

LOOKAHEAD_STEPS = 512
"""Planned ahead at most, whatever the memory: enough to join a lane's blocks into long reads, and quick to plan."""

BlockId = tuple[int, int]
"""Index of a shard, index of a block in it."""


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


@dataclass
class _Read:
    """A request to make, and where its blocks go."""

    blocks: BlockRange
    results: "list[Future[memoryview]]"


@dataclass
class _Held:
    """A block that some planned step needs: on its way, fetched, or decoded."""

    stored: "Future[memoryview]"
    cost_bytes: int
    last_step: int
    decoded: Block | None = None


class BlockWindow:
    """Iterator over steps: the block slices of each, in slot order.

    Plans ahead until the planned steps' blocks fill buffer_bytes, reads all new ones in order of need, consecutive
    blocks of a shard by one request, and begins again once half of them are let go. A block stays from its first to
    its last planned use, so one that serves many steps of a lane is fetched and decoded once. Memory is bounded by
    buffer_bytes or by what `min_steps` steps need, whichever is more.
    """

    def __init__(
        self,
        dataset: ShardStore,
        shards: Sequence[Shard],
        steps: Iterator[Array],
        settings: ReadSettings,
        min_steps: int = 2,
    ) -> None:
        """Nothing is read before the first step is asked for.

        Args:
            dataset: Where the shards are.
            shards: Those that steps refer to by index.
            steps: One array [R, 4] a step: shard, block, and start and stop inside the block, in slot order.
            settings: Memory, threads and patience.
            min_steps: Steps kept planned whatever the memory, so that no block is let go between two uses.
        """
        self.counts = ReadCounts()
        self._dataset = dataset
        self._shards = shards
        self._steps = steps
        self._settings = settings
        self._min_steps = min_steps
        self._planned: deque[Array] = deque()
        self._num_taken = 0
        self._held: dict[BlockId, _Held] = {}
        self._held_bytes = 0
        self._threads = _ReadThreads(dataset, settings)
        read = partial(read_table, dataset, settings=settings, stop=self._threads.stop)
        self._tables = lru_cache(maxsize=1024)(lambda shard: read(shards[shard]))
        weakref.finalize(self, self._threads.close)

    def __iter__(self) -> Iterator[list[BlockSlice]]:
        return self

    def __next__(self) -> list[BlockSlice]:
        """The next step's slices.

        Raises:
            FileNotFoundError: A shard is not there.
            ShardReadError: A shard could not be read in full.
        """
        if self._runs_low():
            self._plan_ahead()
        if not self._planned:
            raise StopIteration
        rows = self._planned.popleft().tolist()
        slices = [BlockSlice(self._decoded(shard, block), start, stop) for shard, block, start, stop in rows]
        self._let_go(rows)
        return slices

    def close(self) -> None:
        """Stops the threads; blocks on their way are given up."""
        self._threads.close()

    def _runs_low(self) -> bool:
        num_planned = len(self._planned)
        half_empty = num_planned <= LOOKAHEAD_STEPS // 2 and self._held_bytes <= self._settings.buffer_bytes // 2
        return half_empty or num_planned < self._min_steps

    def _is_full(self) -> bool:
        num_planned = len(self._planned)
        enough = num_planned >= LOOKAHEAD_STEPS or self._held_bytes >= self._settings.buffer_bytes
        return enough and num_planned >= self._min_steps

    def _plan_ahead(self) -> None:
        new: dict[BlockId, Future[memoryview]] = {}
        while not self._is_full():
            rows = next(self._steps, None)
            if rows is None:
                break
            step = self._num_taken + len(self._planned)
            self._planned.append(rows)
            for block in map(tuple, rows[:, :2].tolist()):
                if block in self._held:
                    self._held[block].last_step = step
                else:
                    held = self._held[block] = _Held(Future(), self._cost(block), step)
                    new[block] = held.stored
                    self._held_bytes += held.cost_bytes
        for read in self._join(new):
            self.counts.add(read.blocks)
            self._threads.submit(read)

    def _let_go(self, rows: list[list[int]]) -> None:
        """Drops the blocks whose last planned use was the step just taken."""
        for shard, block, _, _ in rows:
            held = self._held.get((shard, block))
            if held is not None and held.last_step == self._num_taken:
                del self._held[shard, block]
                self._held_bytes -= held.cost_bytes
        self._num_taken += 1

    def _decoded(self, shard: int, block: int) -> Block:
        # Decoded by the one thread that needs it: in eight threads it cost 3 times the CPU, in turns for the lock.
        held = self._held[shard, block]
        if held.decoded is None:
            url = self._dataset.locate(self._shards[shard].name)
            held.decoded = decode_checked(held.stored.result(), self._shards[shard], self._tables(shard), block, url)
            held.stored = Future()
        return held.decoded

    def _cost(self, block: BlockId) -> int:
        """Twice the stored bytes: a request's bytes stay until its last block is decoded, into 1.4 times as many."""
        return 2 * int(self._tables(block[0]).size[block[1]])

    def _join(self, new: "dict[BlockId, Future[memoryview]]") -> "list[_Read]":
        """Reads for new blocks, in order of need; one takes in the next block of its shard while it is not too long."""
        reads: list[_Read] = []
        endings: dict[BlockId, _Read] = {}
        for (shard, block), result in new.items():
            read = endings.pop((shard, block), None)
            if read is None or not self._fits(read.blocks._replace(stop=block + 1)):
                read = _Read(BlockRange(self._shards[shard], self._tables(shard), block, block), [])
                reads.append(read)
            read.blocks = read.blocks._replace(stop=block + 1)
            read.results.append(result)
            endings[shard, block + 1] = read
        return reads

    def _fits(self, blocks: BlockRange) -> bool:
        return blocks.stop_byte - blocks.start_byte <= self._settings.max_read_bytes


class _ReadThreads:
    """A few daemon threads that read what is submitted, in order."""

    def __init__(self, dataset: ShardStore, settings: ReadSettings) -> None:
        self.stop = threading.Event()
        self._dataset = dataset
        self._settings = settings
        self._reads: queue.SimpleQueue[_Read | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"fetch-{i}") for i in range(settings.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, read: _Read) -> None:
        self._reads.put(read)

    def close(self, seconds: float = 1.0) -> None:
        """Stops the threads and waits a moment: at exit none should be inside Arrow."""
        self.stop.set()
        for _ in self._threads:
            self._reads.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (read := self._reads.get()) is not None:
            if self.stop.is_set():
                _give_up(read)
                continue
            try:
                bodies = read_blocks(self._dataset, read.blocks, self._settings, self.stop)
            except BaseException as error:  # noqa: BLE001 - raised where the blocks are needed
                for result in read.results:
                    result.set_exception(error)
            else:
                for result, body in zip(read.results, bodies, strict=True):
                    result.set_result(body)


def _give_up(read: _Read) -> None:
    for result in read.results:
        result.cancel()
