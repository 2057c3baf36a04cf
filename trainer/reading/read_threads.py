"""Threads that read what is asked for, tables first and else in order.

They give up at once when they are closed. They are daemons of this process: a live filesystem does
not survive a fork, and daemons do not keep the interpreter from exiting.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from pipeline.shards.records import BlockTable, Shard
from trainer.order.source import ShardStore
from trainer.reading.cache import open_cache, read_blocks_cached, read_table_cached
from trainer.reading.ranged_read import (
    Attempts,
    BlockRange,
    complete,
    describe_range,
    describe_table,
    fetch_blocks,
    read_table,
)
from trainer.reading.rate_limit import RateLimit
from trainer.reading.settings import Reading


@dataclass
class Read:
    """A request to make for consecutive blocks.

    Attributes:
        blocks: Which.
        first_key: What the first of them is known by, and the others one by one after it.
        bodies: Receives the bytes of each.
    """

    blocks: BlockRange
    first_key: int
    bodies: "Future[list[memoryview]]"


class _Job(NamedTuple):
    """Something to read, and who receives it."""

    result: "Future[Any]"
    read: Callable[[], Any]


class ReadThreads:
    """A few daemon threads."""

    def __init__(self, store: ShardStore, settings: Reading) -> None:
        """Starts the threads.

        Raises:
            ValueError: The cache cannot be used.
        """
        path = None
        if settings.cache_dir is not None:
            path = open_cache(settings.cache_dir, settings.cache_bytes).rate_path
        self._rate_limit = (
            None if store.is_local else RateLimit(path, settings.rank, settings.num_ranks)
        )
        self.stop = threading.Event()
        self._store, self._settings = store, settings
        self._numbers = count()
        self._jobs: queue.PriorityQueue[tuple[int, int, _Job | None]] = queue.PriorityQueue()
        self._under_way: set[Future[Any]] = set()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"fetch-{number}")
            for number in range(settings.num_requests(store.is_local))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, read: Read) -> None:
        """Reads what is asked for when its turn comes."""
        self._ask(1, _Job(read.bodies, partial(self._read_blocks, read.blocks)))

    def read_table(self, shard: Shard) -> "Future[BlockTable]":
        """A shard's block table, read before everything else: nothing can be planned without."""
        result: Future[BlockTable] = Future()
        self._ask(0, _Job(result, partial(self._read_table, shard)))
        return result

    def close(self, seconds: float = 1.0) -> None:
        """Stops the threads and waits a moment: at exit none should be inside Arrow.

        What has been asked for and is not there is called off, so that whoever waits for it ends
        too.
        """
        self.stop.set()
        with contextlib.suppress(queue.Empty):
            while True:
                _call_off(self._jobs.get_nowait()[2])
        for _ in self._threads:
            self._jobs.put((2, next(self._numbers), None))
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            # One of these may collect the garbage that closes them.
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        for result in [*self._under_way]:
            result.cancel()

    def _ask(self, rank: int, job: _Job) -> None:
        self._jobs.put((rank, next(self._numbers), job))
        if self.stop.is_set():  # and perhaps nobody comes to take it
            _call_off(job)

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None:
            if self.stop.is_set():
                _call_off(job)
                continue
            self._under_way.add(job.result)
            complete(job.result, job.read)
            self._under_way.discard(job.result)

    def _attempts(self, describe: Callable[[], str]) -> Attempts:
        seconds, budget = self._settings.timeout_seconds, self._settings.budget_seconds
        return Attempts(describe, seconds, budget, self.stop, self._rate_limit)

    def _read_table(self, shard: Shard) -> BlockTable:
        attempts = self._attempts(partial(describe_table, self._store, shard))
        if self._settings.cache_dir is None or self._store.is_local:
            return read_table(self._store, shard, attempts)
        return read_table_cached(self._store, shard, self._settings, self.stop, attempts)

    def _read_blocks(self, blocks: BlockRange) -> list[memoryview]:
        if self._settings.cache_dir is None:
            attempts = self._attempts(partial(describe_range, self._store, blocks))
            return fetch_blocks(self._store, blocks, attempts)[1]
        return read_blocks_cached(self._store, blocks, self._settings, self.stop, self._rate_limit)


def _call_off(job: _Job | None) -> None:
    """Whoever waits for it gets a CancelledError, unless it is there already."""
    if job is not None:
        job.result.cancel()
