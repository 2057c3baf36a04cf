"""An iterator run ahead of its consumer in a background thread. Imports the stdlib only."""

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Keeps up to `depth` items of an iterator ready, in order; its exceptions are raised where they would have been.

    The thread is a daemon that knows nothing of who consumes, so an abandoned consumer can be collected and close it.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(items,), daemon=True, name="prefetch")
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._closed.is_set():
            raise ValueError("the stream is closed")
        if self._failure is not None:
            raise self._failure
        item, self._failure = self._ready.get()
        if self._failure is not None:
            raise self._failure
        assert item is not None
        return item

    @property
    def is_ready(self) -> bool:
        """Whether the next item, or what was raised in its place, is there."""
        return self._failure is not None or not self._ready.empty()

    def close(self, seconds: float = 1.0) -> None:
        """Stops the thread, waiting at most `seconds` for what it is doing."""
        self._closed.set()
        while self._thread.is_alive() and seconds > 0:
            self._drain()
            self._thread.join(0.01)
            seconds -= 0.01

    def _run(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                self._ready.put((item, None))
                if self._closed.is_set():
                    return
            self._ready.put((None, StopIteration()))
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._ready.put((None, error))

    def _drain(self) -> None:
        try:
            while True:
                self._ready.get_nowait()
        except queue.Empty:
            pass
