"""Threads that read what is asked for, tables first and else in order.

They give up at once when they are closed. They are daemons of this process: a live filesystem does
not survive a fork, and daemons do not keep the interpreter from exiting.

A thread makes its requests itself, as handing each to a second one cost more than reading it. One
that does not come back in time is left behind, and a new thread goes on where it was: Python cannot
stop a thread that waits.
"""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from pipeline.shards.records import BlockTable, Shard
from trainer.order.source import ShardStore
from trainer.reading.cache import open_cache, read_blocks_cached, read_table_cached
from trainer.reading.ranged_read import (
    Attempts,
    BlockRange,
    Caller,
    LeftBehindError,
    complete,
    describe_range,
    describe_table,
    fetch_blocks,
    no_answer,
    read_table,
)
from trainer.reading.rate_limit import Pace
from trainer.reading.settings import ReadSettings

_LOOKS_PER_TIMEOUT, _MAX_LOOK_SECONDS = 4, 1.0
"""How often threads are looked after: a thread may take that much longer than it is allowed."""

Result = TypeVar("Result")


@dataclass
class Read:
    """A request to make for consecutive blocks.

    Attributes:
        blocks: Which.
        first_number: What the first of them is known by, and the others one by one after it.
        bodies: Receives the bytes of each.
    """

    blocks: BlockRange
    first_number: int
    bodies: "Future[list[memoryview]]"


class _Wanted(NamedTuple):
    """Something to read.

    Attributes:
        result: Receives it.
        describe: Names it, for messages.
        read: Reads it by some attempts, each of which a caller makes.
    """

    result: "Future[Any]"
    describe: Callable[[], str]
    read: Callable[[Attempts, Caller], Any]


class _Job(NamedTuple):
    """What a thread is at, and what is left of the patience with it."""

    wanted: _Wanted
    attempts: Attempts


class _Worker:
    """A thread's own state, looked at by the thread that watches over it."""

    def __init__(self) -> None:
        self.job: _Job | None = None
        self._lock = threading.Lock()
        self._seconds, self._deadline = 0.0, math.inf
        self._is_left_behind = False

    def call(self, seconds: float, function: Callable[[], Result]) -> Result:
        """Calls a function in this thread.

        Raises:
            LeftBehindError: It took longer, and another thread goes on in this one's place.
        """
        with self._lock:
            self._seconds, self._deadline = seconds, time.monotonic() + seconds
        try:
            return function()
        finally:
            with self._lock:
                self._deadline = math.inf
                if self._is_left_behind:
                    raise LeftBehindError

    def leave_behind(self) -> _Job | None:
        """The job to go on with, where this thread has taken too long; it touches it no more."""
        with self._lock:
            if self.job is None or time.monotonic() <= self._deadline:
                return None
            self._is_left_behind, self._deadline = True, math.inf
            self.job.attempts.leave(no_answer(self._seconds))
            return self.job


def _call_off(wanted: _Wanted | None) -> None:
    """Whoever waits for it gets a CancelledError, unless it is there already."""
    if wanted is not None:
        wanted.result.cancel()


class ReadThreads:
    """A few daemon threads."""

    def __init__(self, dataset: ShardStore, settings: ReadSettings) -> None:
        """Starts the threads, and one that watches over them.

        Raises:
            ValueError: The cache cannot be used.
        """
        pace_path = None
        if settings.cache_dir is not None:
            pace_path = open_cache(settings.cache_dir, settings.cache_bytes).pace_path
        self._pace = (
            None if dataset.is_local else Pace(pace_path, settings.rank, settings.num_ranks)
        )
        self.stop = threading.Event()
        self._dataset = dataset
        self._settings = settings
        self._numbers = count()
        self._jobs: queue.PriorityQueue[tuple[int, int, _Wanted | None]] = queue.PriorityQueue()
        self._workers: list[tuple[_Worker, threading.Thread]] = [
            self._start(None, f"fetch-{i}") for i in range(settings.num_requests(dataset.is_local))
        ]
        threading.Thread(target=self._watch, daemon=True, name="fetch-watch").start()

    def submit(self, read: Read) -> None:
        """Reads what is asked for when its turn comes."""
        describe = partial(describe_range, self._dataset, read.blocks)
        self._ask(1, _Wanted(read.bodies, describe, partial(self._read_blocks, read.blocks)))

    def read_table(self, shard: Shard) -> "Future[BlockTable]":
        """A shard's block table, read before everything else: nothing can be planned without."""
        result: Future[BlockTable] = Future()
        describe = partial(describe_table, self._dataset, shard)
        self._ask(0, _Wanted(result, describe, partial(self._read_table, shard)))
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
        workers = [*self._workers]
        for _ in workers:
            self._jobs.put((2, next(self._numbers), None))
        deadline = time.monotonic() + seconds
        for _, thread in workers:
            if (
                thread is not threading.current_thread()
            ):  # one of these may collect the garbage that closes them
                thread.join(max(0.0, deadline - time.monotonic()))
        for worker, _ in workers:
            if (job := worker.job) is not None:
                _call_off(job.wanted)

    def _ask(self, rank: int, wanted: _Wanted) -> None:
        self._jobs.put((rank, next(self._numbers), wanted))
        if self.stop.is_set():  # and perhaps nobody comes to take it
            _call_off(wanted)

    def _start(self, begin: _Job | None, name: str) -> tuple[_Worker, threading.Thread]:
        worker = _Worker()
        thread = threading.Thread(target=self._run, args=(worker, begin), daemon=True, name=name)
        thread.start()
        return worker, thread

    def _watch(self) -> None:
        """Puts a new thread in the place of each that has taken too long."""
        seconds = min(_MAX_LOOK_SECONDS, self._settings.timeout_seconds / _LOOKS_PER_TIMEOUT)
        while not self.stop.wait(seconds):
            for place, (worker, thread) in enumerate(self._workers):
                if (job := worker.leave_behind()) is not None:
                    try:
                        self._workers[place] = self._start(job, thread.name)
                    except RuntimeError as error:  # no more threads to be had
                        with contextlib.suppress(InvalidStateError):
                            job.wanted.result.set_exception(error)

    def _run(self, worker: _Worker, begin: _Job | None) -> None:
        try:
            if begin is not None:
                self._do(worker, begin)
            while (wanted := self._jobs.get()[2]) is not None:
                if self.stop.is_set():
                    _call_off(wanted)
                else:
                    self._do(worker, self._job(wanted))
        except LeftBehindError:
            pass

    def _job(self, wanted: _Wanted) -> _Job:
        seconds, budget = self._settings.timeout_seconds, self._settings.budget_seconds
        return _Job(wanted, Attempts(wanted.describe, seconds, budget, self.stop, self._pace))

    def _do(self, worker: _Worker, job: _Job) -> None:
        worker.job = job
        complete(job.wanted.result, lambda: job.wanted.read(job.attempts, worker.call))
        worker.job = None

    def _read_table(self, shard: Shard, attempts: Attempts, call: Caller) -> BlockTable:
        if self._settings.cache_dir is None or self._dataset.is_local:
            return read_table(self._dataset, shard, attempts, call)
        return read_table_cached(self._dataset, shard, self._settings, self.stop, attempts)

    def _read_blocks(
        self, blocks: BlockRange, attempts: Attempts, call: Caller
    ) -> list[memoryview]:
        if self._settings.cache_dir is None:
            return fetch_blocks(self._dataset, blocks, attempts, call)[1]
        return read_blocks_cached(self._dataset, blocks, self._settings, self.stop, self._pace)
