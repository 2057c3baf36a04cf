"""Blocks by shard and number, read ahead of need by threads, and the rows of steps out of them."""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from pipeline.shards.block import Block, block_instances
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import BLOCKS_TABLE
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.unpack import unpack_block
from trainer.stream.batches.rows import gather_rows
from trainer.stream.order.order import Array
from trainer.stream.reading.cache import open_cache, read_blocks_cached, read_table_cached
from trainer.stream.reading.ranged_read import (
    Attempts,
    BlockRange,
    Result,
    complete,
    fetch_blocks,
    read_table,
)
from trainer.stream.reading.rate_limit import RateLimit
from trainer.stream.reading.settings import Reading

LOOKAHEAD_STEPS, MAX_LOOKAHEAD_STEPS = 512, 8192
"""The most steps planned together at first, for an early batch, and later, for long reads."""

GATHERED_TOKENS = 2**20
"""Steps are gathered together until they have room for so many tokens, some 5 MB."""

MAX_TABLES = 4096
"""The most block tables kept, of some kB each."""

_BLOCK_BITS = 32


class PlannedStep(NamedTuple):
    """What a step takes, in slot order: rows start to stop - 1 of blocks; all [R].

    Attributes:
        keys: The blocks: shard, as its place among those of the reader, and block in one number.
        start: The first row in the block.
        stop: One past the last.
        num_rows: Rows of all blocks.
        facts: What else is known of the step.
    """

    keys: list[int]
    start: Array
    stop: Array
    num_rows: int
    facts: Any = None


def plan_rows(
    shard: Array, block: Array, start: Array, stop: Array, facts: Any = None
) -> PlannedStep:
    """The step of rows start to stop - 1 of blocks of shards."""
    keys = (shard << _BLOCK_BITS | block).tolist()
    return PlannedStep(keys, start, stop, int((stop - start).sum()), facts)


class _Asked(NamedTuple):
    """Blocks on their way, and their bytes."""

    blocks: BlockRange
    bodies: "Future[list[bytes]]"


class BlockReader:
    """Threads that read blocks, which are unpacked by whoever takes them, until they are let go.

    Unpacking is a hundred short calls, between which threads would wait for each other.

    The threads are daemons of this process: a live filesystem does not survive a fork, and daemons
    do not keep the interpreter from exiting. It counts requests, blocks and bytes asked for.
    """

    def __init__(self, shards: Sequence[tuple[Dataset, Shard]], settings: Reading) -> None:
        """Starts the threads; shards of the same length may be added at the end at any time."""
        self.requests = self.blocks = self.bytes = 0
        self._shards, self._settings, self._stop = shards, settings, threading.Event()
        folder, is_local = settings.cache_dir, all(dataset.is_local for dataset, _ in shards)
        self._cache = open_cache(folder, settings.cache_bytes) if folder is not None else None
        path = self._cache.rate_path if self._cache else None
        self._rate_limit = None if is_local else RateLimit(path, settings.rank, settings.num_ranks)
        self._held: dict[int, Block | _Asked] = {}
        self._tables: dict[int, Future[BlockTable]] = {}
        self._token_dtype: Any = None
        self._numbers = count()
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]]
        self._jobs = queue.PriorityQueue()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"fetch-{number}")
            for number in range(settings.num_requests(is_local))
        ]
        for thread in self._threads:
            thread.start()

    def get(self, key: int) -> Block:
        """A block that was asked for; raises as `fetch_blocks`, and a ValueError if it is none."""
        held = self._held[key]
        if isinstance(held, Block):
            return held
        (dataset, shard, table, first, _), bodies = held
        number = key & (1 << _BLOCK_BITS) - 1
        body, where = bodies.result()[number - first], held.blocks.locate(number)
        block = unpack_block(body, table, number, shard, dataset.vocab_size, where)
        found = block.input_ids.dtype
        self._token_dtype = self._token_dtype or found
        if found != self._token_dtype:
            raise ValueError(
                f"{dataset.locate(shard.name)}: tokens of {found} among blocks of"
                f" {self._token_dtype}; verify the dataset"
            )
        self._held[key], bodies.result()[number - first] = block, b""
        return block

    def table(self, shard: int) -> "Future[BlockTable]":
        """A shard's block table, read before everything else: nothing can be asked for without."""
        if shard not in self._tables:
            while len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[shard] = result = Future[BlockTable]()
            self._submit(0, result, partial(self._read_table, shard))
        return self._tables[shard]

    def ask(self, keys: Iterable[int]) -> None:
        """Reads blocks in order of need, but for those that are held; consecutive ones together."""
        new = [key for key in keys if key not in self._held]
        for shard in dict.fromkeys(key >> _BLOCK_BITS for key in new):
            self.table(shard)  # of all shards at once: each is a round trip
        most, table_of = self._settings.max_read_bytes, lambda shard: self.table(shard).result()
        for first, blocks in join_blocks(new, self._shards, table_of, most):
            asked, num_blocks = _Asked(blocks, Future()), blocks.stop - blocks.first
            self._held |= dict.fromkeys(range(first, first + num_blocks), asked)
            self.requests, self.blocks = self.requests + 1, self.blocks + num_blocks
            self.bytes += blocks.stop_byte - blocks.start_byte
            self._submit(1, asked.bodies, partial(self._fetch, blocks))

    def steps(
        self, planned: Iterator[PlannedStep], min_steps: int = 2
    ) -> Iterator[tuple[list[PlannedStep], Block]]:
        """Steps, some together, and their rows as one block; raises as `fetch_blocks`.

        While some steps are gathered the blocks of the next are read: those that fill half of the
        memory, or of min_steps steps at least, so that a block lives from one visit of its lane to
        the next.
        """
        ahead: deque[PlannedStep] = deque()
        last_use: dict[int, int] = {}
        num_planned = stretch = 0
        lookahead = LOOKAHEAD_STEPS
        while True:
            if 2 * len(ahead) <= stretch:
                new = self._plan(planned, max(lookahead, min_steps), min_steps)
                lookahead, stretch = min(2 * lookahead, MAX_LOOKAHEAD_STEPS), len(new)
                for number, step in enumerate(new, num_planned):
                    last_use |= dict.fromkeys(step.keys, number)
                num_planned += len(new)
                self.ask(dict.fromkeys(chain.from_iterable(step.keys for step in new)))
                ahead.extend(new)
            if not ahead:
                return
            taken = self._take(ahead, len(ahead) if stretch == 0 else max(1, stretch // 4))
            gathered = self._gather(taken)
            num_done = num_planned - len(ahead)
            for key in [key for key, last in last_use.items() if last < num_done]:
                del last_use[key], self._held[key]
            yield taken, gathered

    def close(self, seconds: float = 1.0) -> None:
        """Stops the threads and waits a moment: at exit none should be inside Arrow.

        Whoever waits for what is not there gets a CancelledError.
        """
        self._stop.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put((2, next(self._numbers), None))
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            # One of these may collect the garbage that closes them.
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for table in self._tables.values():
            table.cancel()
        for held in self._held.values():
            if isinstance(held, _Asked):
                held.bodies.cancel()

    def _plan(
        self, planned: Iterator[PlannedStep], most_steps: int, min_steps: int
    ) -> list[PlannedStep]:
        """Takes steps until their blocks, at twice their stored bytes, fill half of the memory."""
        found: list[PlannedStep] = []
        keys: set[int] = set()
        num_bytes = 0.0
        for step in planned:
            found.append(step)
            for shard in (self._shards[key >> _BLOCK_BITS][1] for key in {*step.keys} - keys):
                num_blocks = -(-shard.instances // block_instances(shard.seq_len))
                num_bytes += 2 * shard.num_bytes / num_blocks
            keys |= {*step.keys}
            is_full = num_bytes >= self._settings.buffer_bytes // 2 and len(found) >= min_steps
            if is_full or len(found) >= most_steps:
                break
        return found

    def _take(self, ahead: deque[PlannedStep], most: int) -> list[PlannedStep]:
        """The next step, and those after it whose blocks are there."""
        taken, rows = [ahead.popleft()], -(-GATHERED_TOKENS // self._shards[0][1].seq_len)
        rows -= taken[0].num_rows
        while ahead and len(taken) < most and rows > 0 and self._have(ahead[0].keys):
            taken.append(ahead.popleft())
            rows -= taken[-1].num_rows
        return taken

    def _have(self, keys: Sequence[int]) -> bool:
        """Whether blocks are there; those that failed are not."""
        for key in keys:
            held = self._held[key]
            if isinstance(held, Block):
                continue
            try:
                if not held.bodies.done():
                    return False
                self.get(key)
            except (Exception, CancelledError):  # noqa: BLE001 - raised when its step is the next
                return False
        return True

    def _gather(self, steps: Sequence[PlannedStep]) -> Block:
        keys = [key for step in steps for key in step.keys]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return gather_rows(
            [self.get(key) for key in numbers],
            np.array([numbers[key] for key in keys]),
            np.concatenate([step.start for step in steps]),
            np.concatenate([step.stop for step in steps]),
        )

    def _submit(self, rank: int, result: "Future[Result]", function: Callable[[], Result]) -> None:
        self._jobs.put((rank, next(self._numbers), partial(complete, result, function)))
        if self._stop.is_set():  # and perhaps nobody comes to take it
            result.cancel()

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None:
            if not self._stop.is_set():
                job()

    def _attempts(self, what: object) -> Attempts:
        return Attempts(what, self._settings, self._stop, self._rate_limit)

    def _read_table(self, number: int) -> BlockTable:
        dataset, shard = self._shards[number]
        attempts = self._attempts(f"{dataset.locate(shard.name)}, its rows of {BLOCKS_TABLE}")
        if self._cache is None or dataset.is_local:
            return read_table(dataset, shard, attempts)
        return read_table_cached(self._cache, dataset, shard, attempts)

    def _fetch(self, blocks: BlockRange) -> list[bytes]:
        """The bytes of each block, apart: those of one that is unpacked are let go."""
        attempts = self._attempts(blocks)
        if self._cache is None:
            bodies = fetch_blocks(blocks, attempts)[1]
        else:
            bodies = read_blocks_cached(self._cache, blocks, attempts)
        return [bytes(body) for body in bodies]


def join_blocks(
    keys: Iterable[int],
    shards: Sequence[tuple[Dataset, Shard]],
    table_of: Callable[[int], BlockTable],
    max_read_bytes: int,
) -> list[tuple[int, BlockRange]]:
    """The requests that read different blocks, in order of need, each with the key of its first.

    One takes in the next block of its shard up to so many bytes.
    """
    reads: dict[int, BlockRange] = {}
    first_of: dict[int, int] = {}  # the request that would end with a block
    for key in keys:
        shard, block = divmod(key, 1 << _BLOCK_BITS)
        first = first_of.pop(key, key)
        one = BlockRange(*shards[shard], table_of(shard), block, block + 1)
        joined = reads[first]._replace(stop=block + 1) if first in reads else one
        if joined.stop_byte - joined.start_byte > max_read_bytes:
            first, joined = key, one
        reads[first] = joined
        first_of[key + 1] = first
    return [*reads.items()]
