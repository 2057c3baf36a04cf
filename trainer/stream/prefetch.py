"""An iterator run ahead of its consumer in a background thread."""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Keeps up to `depth` groups of items ready, in order; exceptions are raised where they would have been.

    Items come in groups because handing over from thread to thread costs as much as packing a small step. The thread
    is a daemon that knows nothing of who consumes, so an abandoned consumer can be collected and close it.
    """

    def __init__(self, groups: Iterator[Sequence[Item]], depth: int) -> None:
        self._ready: queue.Queue[tuple[Sequence[Item], BaseException | None]] = queue.Queue(depth)
        self._taken: deque[Item] = deque()
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(groups,), daemon=True, name="prefetch")
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._closed.is_set():
            raise ValueError("the stream is closed")
        while not self._taken:
            if self._failure is not None:
                raise self._failure
            group, self._failure = self._ready.get()
            self._taken.extend(group)
        return self._taken.popleft()

    @property
    def is_ready(self) -> bool:
        """Whether the next item, or what was raised in its place, is there."""
        return bool(self._taken) or self._failure is not None or not self._ready.empty()

    def close(self, seconds: float = 1.0) -> None:
        """Stops the thread, waiting at most `seconds` for what it is doing."""
        self._closed.set()
        if self._thread is threading.current_thread():  # which may collect the garbage that closes it
            return
        while self._thread.is_alive() and seconds > 0:
            self._drain()
            self._thread.join(0.01)
            seconds -= 0.01
        self._drain()  # an error holds the frames it came through, and they this

    def _run(self, groups: Iterator[Sequence[Item]]) -> None:
        try:
            for group in groups:
                self._hand_over(group, None)
                if self._closed.is_set():
                    return
            self._hand_over((), StopIteration())
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._hand_over((), error)
        finally:
            if isinstance(groups, Generator):
                groups.close()

    def _hand_over(self, group: Sequence[Item], failure: BaseException | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put((group, failure), timeout=0.2)
                return

    def _drain(self) -> None:
        try:
            while True:
                self._ready.get_nowait()
        except queue.Empty:
            pass
