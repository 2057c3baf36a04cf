"""Threads that read what is asked for, tables first and else in order, and give up at once when they are closed.

May import the stdlib, pipeline.shards and this package. They are daemons of this process: a live filesystem does not
survive a fork, and daemons do not keep the interpreter from exiting.
"""

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count

from pipeline.shards.records import BlockTable, Shard
from trainer.stream.cached_read import open_cache, read_blocks
from trainer.stream.ranged_read import BlockRange, ReadSettings, complete, read_table
from trainer.stream.source import ShardStore


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


@dataclass
class _TableRead:
    """A shard whose block table is wanted."""

    shard: Shard
    table: "Future[BlockTable]"


class ReadThreads:
    """A few daemon threads."""

    def __init__(self, dataset: ShardStore, settings: ReadSettings) -> None:
        """Starts settings.num_threads threads.

        Raises:
            ValueError: The cache cannot be used.
        """
        if settings.cache_dir is not None:
            open_cache(settings.cache_dir, settings.cache_bytes)
        self.stop = threading.Event()
        self._dataset = dataset
        self._settings = settings
        self._numbers = count()
        self._jobs: queue.PriorityQueue[tuple[int, int, Read | _TableRead | None]] = queue.PriorityQueue()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"fetch-{i}") for i in range(settings.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, read: Read) -> None:
        """Reads what is asked for when its turn comes."""
        self._jobs.put((1, next(self._numbers), read))

    def read_table(self, shard: Shard) -> "Future[BlockTable]":
        """A shard's block table, before everything else that waits: nothing can be planned without."""
        result: Future[BlockTable] = Future()
        self._jobs.put((0, next(self._numbers), _TableRead(shard, result)))
        return result

    def close(self, seconds: float = 1.0) -> None:
        """Stops the threads and waits a moment: at exit none should be inside Arrow."""
        self.stop.set()
        for _ in self._threads:
            self._jobs.put((2, next(self._numbers), None))
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (job := self._jobs.get()[2]) is not None:
            if self.stop.is_set():
                (job.bodies if isinstance(job, Read) else job.table).cancel()
            elif isinstance(job, _TableRead):
                self._read_table(job)
            else:
                self._read_blocks(job)

    def _read_table(self, job: _TableRead) -> None:
        complete(job.table, lambda: read_table(self._dataset, job.shard, self._settings, self.stop))

    def _read_blocks(self, read: Read) -> None:
        complete(read.bodies, lambda: read_blocks(self._dataset, read.blocks, self._settings, self.stop))
