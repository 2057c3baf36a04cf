"""Reads the blocks of the next steps in threads, ahead of need, and gathers the rows of steps."""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple, TypeVar

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

LOOKAHEAD_STEPS = 512
"""The most steps planned together at first, so that the first batch does not wait for long."""

MAX_LOOKAHEAD_STEPS = 8192
"""The most steps planned together later, so that requests are long."""

GATHERED_TOKENS = 2**20
"""Steps are gathered together until their rows may hold this many tokens, some 5 MB."""

MAX_TABLES = 4096
"""The most block tables kept in memory, of some kB each."""

_BLOCK_BITS = 32
"""Low bits of a block's key that hold its index in the shard; the shard's index is above them."""

_UNPACKED_FACTOR = 2
"""Bytes of an unpacked block, as a multiple of its stored bytes: an estimate."""

_TABLE_PRIORITY = 0
_BLOCK_PRIORITY = 1
_END_PRIORITY = 2


@dataclass(frozen=True)
class PlannedStep:
    """The rows that a step takes, in the order of its slots, as R ranges of rows of blocks.

    `BlockReader.steps` yields the same objects that it was given. So a caller can pass objects of a
    subclass, which carry further facts about the step.

    Attributes:
        keys: The key of the block of each range, from `block_keys`; R numbers.
        start: First row of each range in its block, int64 [R].
        stop: One past the last row of each range, int64 [R].
        num_rows: Number of rows of all ranges.
    """

    keys: list[int]
    start: Array
    stop: Array
    num_rows: int


StepT = TypeVar("StepT", bound=PlannedStep)


def block_keys(shard: Array, block: Array) -> list[int]:
    """Returns a number for each of R blocks, by which a `BlockReader` knows it.

    Args:
        shard: Index of each block's shard among those of the reader, int64 [R].
        block: Index of each block in its shard, int64 [R].
    """
    keys: list[int] = (shard << _BLOCK_BITS | block).tolist()
    return keys


def plan_rows(shard: Array, block: Array, start: Array, stop: Array) -> PlannedStep:
    """Returns a step that takes some ranges of rows.

    Args:
        shard: Index of each range's shard among those of the reader, int64 [R].
        block: Index of each range's block in its shard, int64 [R].
        start: First row of each range in its block, int64 [R].
        stop: One past the last row of each range, int64 [R].
    """
    return PlannedStep(block_keys(shard, block), start, stop, int((stop - start).sum()))


class _Request(NamedTuple):
    """A request for consecutive blocks, which may have been answered or not.

    Attributes:
        blocks: The blocks that were asked for.
        bodies: The bytes of each block, once they are read. When a block is unpacked, its bytes are
            replaced by b"" to free them.
    """

    blocks: BlockRange
    bodies: "Future[list[bytes]]"


class BlockReader:
    """Reads the bytes of blocks in threads, and unpacks blocks when they are taken.

    A block is unpacked in the thread that takes it. Unpacking makes about a hundred short calls of
    Python, which would wait for the interpreter's lock if several threads made them.

    The threads are daemons, so that they do not keep the interpreter from exiting. They are threads
    of this process, and not processes, because an open filesystem does not survive a fork.

    Attributes:
        requests: Number of requests for blocks so far.
        blocks: Number of blocks asked for so far.
        bytes: Number of bytes asked for so far.
    """

    def __init__(self, shards: Sequence[tuple[Dataset, Shard]], settings: Reading) -> None:
        """Starts the threads.

        Args:
            shards: The shards, each with its dataset, all of one length. Others of this length may
                be appended at any time.
            settings: How to read.

        Raises:
            CacheError: The cache folder cannot be used.
        """
        self.requests = 0
        self.blocks = 0
        self.bytes = 0
        self._shards = shards
        self._settings = settings
        self._stop = threading.Event()
        is_local = all(dataset.is_local for dataset, _ in shards)
        self._cache = None
        if settings.cache_dir is not None:
            self._cache = open_cache(settings.cache_dir, settings.cache_bytes)
        self._rate_limit = None
        if not is_local:
            rate_path = self._cache.rate_path if self._cache else None
            self._rate_limit = RateLimit(rate_path, settings.rank, settings.num_ranks)
        self._held: dict[int, Block | _Request] = {}
        self._tables: dict[int, Future[BlockTable]] = {}
        self._token_dtype: Any = None
        # Jobs of one priority are done in the order of their numbers. None ends a thread.
        self._job_numbers = count()
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]]
        self._jobs = queue.PriorityQueue()
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"fetch-{number}")
            for number in range(settings.num_requests(is_local))
        ]
        for thread in self._threads:
            thread.start()

    def get(self, key: int) -> Block:
        """Returns a block that `ask` has requested.

        If need be it waits for the block's bytes and unpacks them.

        Args:
            key: Key of the block, from `block_keys`.

        Raises:
            FileNotFoundError: The shard is missing.
            ShardReadError: The bytes could not be read, or do not match the block table.
            ValueError: The bytes are not a block of this shard.
        """
        held = self._held[key]
        if isinstance(held, Block):
            return held
        requested = held.blocks
        bodies = held.bodies.result()
        _, number = _split_key(key)
        index = number - requested.first
        block = unpack_block(
            bodies[index],
            requested.table,
            number,
            requested.shard,
            requested.dataset.manifest,
            requested.locate(number),
        )
        # Rows of several blocks are gathered into one array, so all must have the same type.
        token_dtype = block.input_ids.dtype
        self._token_dtype = self._token_dtype or token_dtype
        if token_dtype != self._token_dtype:
            raise ValueError(
                f"{requested.dataset.locate(requested.shard.name)}: tokens of {token_dtype} among"
                f" blocks of {self._token_dtype}; verify the dataset"
            )
        self._held[key] = block
        bodies[index] = b""  # frees the stored bytes
        return block

    def table(self, shard: int) -> "Future[BlockTable]":
        """Returns the block table of a shard as a future, and starts to read it if need be.

        `ask` needs the table, because it says where the blocks are.

        Args:
            shard: Index of the shard among those of the reader.
        """
        if shard not in self._tables:
            while len(self._tables) >= MAX_TABLES:
                del self._tables[next(iter(self._tables))]
            table = Future[BlockTable]()
            self._tables[shard] = table
            self._submit(_TABLE_PRIORITY, table, partial(self._read_table, shard))
        return self._tables[shard]

    def ask(self, keys: Iterable[int]) -> None:
        """Requests blocks, unless the reader has them already or has requested them.

        Consecutive blocks are read by one request. The method waits for the block tables of the
        shards, but not for the blocks.

        Args:
            keys: Keys of blocks, in the order in which they are needed.
        """
        new_keys = [key for key in keys if key not in self._held]
        # All tables are asked for before the first is waited for, as each is a round trip.
        shards = [_split_key(key)[0] for key in new_keys]
        for shard in dict.fromkeys(shards):
            self.table(shard)
        requests = join_blocks(
            new_keys,
            self._shards,
            lambda shard: self.table(shard).result(),
            self._settings.max_read_bytes,
        )
        for first_key, blocks in requests:
            request = _Request(blocks, Future())
            num_blocks = blocks.stop - blocks.first
            self._held |= dict.fromkeys(range(first_key, first_key + num_blocks), request)
            self.requests += 1
            self.blocks += num_blocks
            self.bytes += blocks.stop_byte - blocks.start_byte
            self._submit(_BLOCK_PRIORITY, request.bodies, partial(self._fetch, blocks))

    def steps(
        self, planned: Iterator[StepT], min_steps: int = 2
    ) -> Iterator[tuple[list[StepT], Block]]:
        """Yields groups of consecutive steps, each with one block that holds all rows of the group.

        While the rows of some steps are gathered, the blocks of later steps are read: as many
        blocks as fill half of the buffer, but at least those of `min_steps` steps. If `min_steps`
        covers a round through all lanes, a block stays in memory from one visit of its lane to the
        next.

        Args:
            planned: The steps in order. It is read lazily, some steps ahead.
            min_steps: Least number of steps to read ahead, whatever memory they need.

        Yields:
            The steps, the same objects as in `planned`; and a block with their rows, one step after
            another.

        Raises:
            FileNotFoundError: A shard is missing.
            ShardReadError: Bytes could not be read, or do not match the block table.
            ValueError: Bytes are not a block of their shard.
        """
        ahead: deque[StepT] = deque()  # planned steps that are not gathered yet
        last_use: dict[int, int] = {}  # the number of the last planned step that needs a block
        num_planned = 0
        num_new = 0  # number of steps that were planned last
        most_steps = LOOKAHEAD_STEPS
        while True:
            # The next steps are planned when half of those that were planned last are gathered. So
            # there are always blocks on their way, and at most those of two plans are held, each of
            # half of the buffer.
            if 2 * len(ahead) <= num_new:
                new = self._plan(planned, max(most_steps, min_steps), min_steps)
                num_new = len(new)
                most_steps = min(2 * most_steps, MAX_LOOKAHEAD_STEPS)
                for number, step in enumerate(new, num_planned):
                    last_use |= dict.fromkeys(step.keys, number)
                num_planned += num_new
                needed = chain.from_iterable(step.keys for step in new)
                self.ask(dict.fromkeys(needed))
                ahead.extend(new)
            if not ahead:
                return

            # At most a quarter of a plan is gathered at once: a longer group would go on past the
            # point at which the next steps should be planned. After the last plan there is none.
            is_last_plan = num_new == 0
            most_taken = len(ahead) if is_last_plan else max(1, num_new // 4)
            taken = self._take(ahead, most_taken)
            gathered = self._gather(taken)

            num_done = num_planned - len(ahead)
            unneeded = [key for key, number in last_use.items() if number < num_done]
            for key in unneeded:
                del last_use[key]
                del self._held[key]
            yield taken, gathered

    def close(self, seconds: float = 1.0) -> None:
        """Stops the threads, and waits for them for up to some seconds.

        It waits because a thread should not be inside Arrow when the interpreter exits. Callers
        that still wait for a block or a table get a CancelledError.

        Args:
            seconds: How long to wait for the threads.
        """
        self._stop.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put((_END_PRIORITY, next(self._job_numbers), None))
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            # The garbage collector may call this in one of the threads.
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for table in self._tables.values():
            table.cancel()
        for held in self._held.values():
            if isinstance(held, _Request):
                held.bodies.cancel()

    def _plan(self, planned: Iterator[StepT], most_steps: int, min_steps: int) -> list[StepT]:
        """Takes steps from `planned` until their unpacked blocks would fill half of the buffer.

        Args:
            planned: The steps to come.
            most_steps: Number of steps to take at most.
            min_steps: Number of steps to take at least, unless no more are planned.
        """
        steps: list[StepT] = []
        keys: set[int] = set()
        num_bytes = 0.0
        for step in planned:
            steps.append(step)
            for key in {*step.keys} - keys:
                shard_index, _ = _split_key(key)
                _, shard = self._shards[shard_index]
                num_blocks = -(-shard.instances // block_instances(shard.seq_len))
                num_bytes += _UNPACKED_FACTOR * shard.num_bytes / num_blocks
            keys |= {*step.keys}
            is_full = num_bytes >= self._settings.buffer_bytes // 2 and len(steps) >= min_steps
            if is_full or len(steps) >= most_steps:
                break
        return steps

    def _take(self, ahead: deque[StepT], most_steps: int) -> list[StepT]:
        """Removes the steps to gather next from `ahead`.

        They are the next step, and those right after it whose blocks have been read already. No
        further step is taken once the rows of those taken may hold GATHERED_TOKENS tokens.

        Args:
            ahead: The steps to come, at least one.
            most_steps: Number of steps to take at most.

        Returns:
            The steps that were removed, in order.
        """
        taken = [ahead.popleft()]
        rows_left = -(-GATHERED_TOKENS // self._shards[0][1].seq_len) - taken[0].num_rows
        while ahead and len(taken) < most_steps and rows_left > 0 and self._have(ahead[0].keys):
            step = ahead.popleft()
            taken.append(step)
            rows_left -= step.num_rows
        return taken

    def _have(self, keys: Sequence[int]) -> bool:
        """Returns whether all blocks with these keys have been read and unpacked without an error.

        It does not wait for them. Blocks that have been read are unpacked.
        """
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
        """Returns the rows of steps, one step after another, as one block."""
        keys = [key for step in steps for key in step.keys]
        index_of = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        return gather_rows(
            [self.get(key) for key in index_of],
            np.array([index_of[key] for key in keys]),
            np.concatenate([step.start for step in steps]),
            np.concatenate([step.stop for step in steps]),
        )

    def _submit(
        self, priority: int, result: "Future[Result]", function: Callable[[], Result]
    ) -> None:
        """Lets a thread call a function; its result or exception goes into `result`.

        Args:
            priority: Functions with a smaller number are called first, and functions with equal
                numbers in the order in which they were submitted.
            result: Receives the result or the exception.
            function: The function.
        """
        self._jobs.put((priority, next(self._job_numbers), partial(complete, result, function)))
        if self._stop.is_set():  # and perhaps no thread is left to do it
            result.cancel()

    def _work(self) -> None:
        """Does the jobs of the queue until it takes None, which ends a thread."""
        while (job := self._jobs.get()[2]) is not None:
            if not self._stop.is_set():
                job()

    def _attempts(self, what: object) -> Attempts:
        """Returns a new `Attempts` for one request, which `what` names in messages."""
        return Attempts(what, self._settings, self._stop, self._rate_limit)

    def _read_table(self, number: int) -> BlockTable:
        """Reads the block table of a shard.

        It is read through the cache if there is one and the dataset is not local.

        Args:
            number: Index of the shard among those of the reader.
        """
        dataset, shard = self._shards[number]
        attempts = self._attempts(f"{dataset.locate(shard.name)}, its rows of {BLOCKS_TABLE}")
        if self._cache is None or dataset.is_local:
            return read_table(dataset, shard, attempts)
        return read_table_cached(self._cache, dataset, shard, attempts)

    def _fetch(self, blocks: BlockRange) -> list[bytes]:
        """Reads the bytes of each block of a range, through the cache if there is one.

        The bytes of each block are a copy, so that they can be freed one by one.
        """
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
    """Returns the requests by which blocks are read, in the order in which they are needed.

    A block is added to the request for the block before it, as long as the request stays within
    `max_read_bytes`.

    Args:
        keys: Keys of different blocks, in the order in which they are needed.
        shards: The shards of the reader.
        table_of: Takes the index of a shard, and returns its block table.
        max_read_bytes: The most bytes of a request of several blocks.

    Returns:
        For each request the key of its first block, and the blocks that it reads.
    """
    requests: dict[int, BlockRange] = {}  # by the key of the first block of each
    # For the key of the block that would extend a request: the first key of that request.
    extends: dict[int, int] = {}
    for key in keys:
        shard, block = _split_key(key)
        first_key = key
        request = BlockRange(*shards[shard], table_of(shard), block, block + 1)
        if key in extends:
            longer = requests[extends[key]]._replace(stop=block + 1)
            if longer.stop_byte - longer.start_byte <= max_read_bytes:
                first_key = extends[key]
                request = longer
        requests[first_key] = request
        extends[key + 1] = first_key
    return list(requests.items())


def _split_key(key: int) -> tuple[int, int]:
    """Returns the index of a block's shard, and the index of the block in it (`block_keys`)."""
    return divmod(key, 1 << _BLOCK_BITS)
