"""Threads that read what is asked for, in order, and give up at once when they are closed.

May import the stdlib, pipeline.shards and this package. They are daemons of this process: a live filesystem does not
survive a fork, and daemons do not keep the interpreter from exiting.
"""

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from trainer.stream.cached_read import open_cache, read_blocks
from trainer.stream.ranged_read import BlockRange, ReadSettings
from trainer.stream.source import ShardStore


@dataclass
class Read:
    """A request to make, and where its blocks go."""

    blocks: BlockRange
    results: "list[Future[memoryview]]"


class ReadThreads:
    """A few daemon threads that read what is submitted, in order."""

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
        self._reads: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"fetch-{i}") for i in range(settings.num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, read: Read) -> None:
        """Reads what is asked for when its turn comes."""
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


def _give_up(read: Read) -> None:
    for result in read.results:
        result.cancel()
