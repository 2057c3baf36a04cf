"""How often a store is asked: no more than it takes from all ranks, and less while it fails.

A store that fails or throttles is asked at a growing interval by all threads and processes of a
node together. The interval shrinks while answers come.
"""

import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

ALL_RANKS_PER_SECOND = 3000
"""Requests a second that all ranks begin together: S3 states 5,500 for a prefix."""

MOST_FREE_RANKS = 128
"""So many ranks ask for less before their first step than a store takes in a second."""

FIRST_SECONDS, MAX_SECONDS = 1 / 64, 15.0
"""A node's interval after a first failure, and the longest."""

FREE_SECONDS = 1 / 128
"""Below this interval a node asks as it likes."""

SHRINK_SECONDS = 1.0
"""An answer halves the interval, at most once in so many seconds."""

_NUM_BYTES = 24
_uniform = SystemRandom().uniform


class RateLimit:
    """The turns of one process, whose interval it may share with others through a file."""

    def __init__(
        self,
        path: Path | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        uniform: Callable[[float, float], float] = _uniform,
    ) -> None:
        """A rate that nothing slows yet, or that of the processes of a node that share a file.

        Turns of the ranks that ask the same store lie between each other. `uniform` draws a number
        between two.
        """
        self._uniform = uniform
        self._spacing = num_ranks / ALL_RANKS_PER_SECOND if num_ranks > MOST_FREE_RANKS else 0.0
        self._late_seconds, self._own_turn = rank / ALL_RANKS_PER_SECOND, -1.0
        self._lock = threading.Lock()
        self._file = None if path is None else os.open(path, os.O_RDWR)
        if self._file is not None:
            weakref.finalize(self, os.close, self._file)
        shared = bytearray(_NUM_BYTES) if self._file is None else mmap.mmap(self._file, _NUM_BYTES)
        # The interval, when it last changed, and the next turn; times since the machine started.
        self._shared = memoryview(shared).cast("d")

    @property
    def interval(self) -> float:
        """Seconds between two requests of the node; 0 while the store answers."""
        return self._shared[0]

    def take_turn(self, now: float) -> float:
        """Takes a turn and returns 0, or returns the seconds after which to ask for one again."""
        if not self._spacing and not self.interval:
            return 0.0
        with self._locked():
            if self._own_turn < 0:
                self._own_turn = now + self._late_seconds
            interval, _, turn = self._shared
            if interval and turn > now + MAX_SECONDS:  # of a machine that was started again
                interval = self._shared[0] = 0.0
            later = max(self._own_turn if self._spacing else now, turn if interval else now)
            if later > now:
                return later - now
            self._own_turn = now + self._spacing
            self._shared[2] = now + self._jittered(interval)
            return 0.0

    def failed(self, asked: float, now: float) -> None:
        """Doubles the interval, once for all requests that were on their way at the same time."""
        with self._locked():
            interval, changed, _ = self._shared
            if interval and changed <= now and asked < changed:
                return
            interval = min(max(2 * interval, FIRST_SECONDS), MAX_SECONDS)
            self._set(interval, now, now + self._jittered(interval))

    def answered(self, asked: float, now: float) -> None:
        """Shrinks the interval, where a request that was made at this rate was answered."""
        if not self.interval:
            return
        with self._locked():
            interval, changed, turn = self._shared
            if changed <= now < changed + SHRINK_SECONDS or asked < changed <= now:
                return
            interval = interval / 2 if interval / 2 > FREE_SECONDS else 0.0
            self._set(interval, now, min(turn, now + self._jittered(interval)))

    def _set(self, interval: float, changed: float, turn: float) -> None:
        self._shared[0], self._shared[1], self._shared[2] = interval, changed, turn

    def _jittered(self, seconds: float) -> float:
        return self._uniform(0.5, 1.0) * seconds

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.flock(self._file, fcntl.LOCK_UN)


def make_rate_file(path: Path) -> None:
    """A file for `RateLimit`, unless it is there; an OSError where it cannot be written."""
    with path.open("ab") as file:
        if file.tell() != _NUM_BYTES:
            file.truncate(_NUM_BYTES)
