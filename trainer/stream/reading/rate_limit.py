"""Limits how often a store is asked.

There are two limits. If there are very many ranks, each of them spaces its requests so that all
together stay below the limit of the store. And if a store fails or throttles, all threads and
processes of a machine together wait for an interval between two requests. The interval grows with
each failure and shrinks while answers come.
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
"""Requests per second that all ranks together begin. S3 states a limit of 5,500 per prefix."""

MOST_FREE_RANKS = 128
"""Up to this many ranks need no turns, because their first requests stay below a store's limit."""

FIRST_SECONDS = 1 / 64
"""A machine's interval after a first failure."""

MAX_SECONDS = 15.0
"""The longest interval of a machine."""

FREE_SECONDS = 1 / 128
"""An interval that shrinks to this or less becomes 0: requests begin at any time."""

SHRINK_SECONDS = 1.0
"""An answer halves the interval, at most once in this many seconds."""

_NUM_BYTES = 24
_uniform = SystemRandom().uniform


class RateLimit:
    """Says when a process may make its next request to a store.

    The processes of a machine can share the interval that follows failures, through a file.
    """

    def __init__(
        self,
        path: Path | None = None,
        rank: int = 0,
        num_ranks: int = 1,
        uniform: Callable[[float, float], float] = _uniform,
    ) -> None:
        """Opens the shared file, if there is one.

        Args:
            path: A file that `make_rate_file` made. Through it the processes of a machine share
                the interval between requests that follows failures. If it is None, this process
                has an interval for itself.
            rank: Number of this process among those that ask the same store.
            num_ranks: Number of processes that ask the same store. If there are more than
                MOST_FREE_RANKS, each of them spaces its requests so that all processes together
                begin at most ALL_RANKS_PER_SECOND requests per second.
            uniform: Draws a random number between two numbers.
        """
        self._uniform = uniform
        self._spacing = num_ranks / ALL_RANKS_PER_SECOND if num_ranks > MOST_FREE_RANKS else 0.0
        self._late_seconds = rank / ALL_RANKS_PER_SECOND
        self._own_turn = -1.0  # when this rank's next turn begins; below 0 before the first one
        self._lock = threading.Lock()
        self._file = None if path is None else os.open(path, os.O_RDWR)
        if self._file is not None:
            weakref.finalize(self, os.close, self._file)
        shared = bytearray(_NUM_BYTES) if self._file is None else mmap.mmap(self._file, _NUM_BYTES)
        # The interval, when it last changed, and when the machine's next turn begins. Times are
        # seconds since the machine started.
        self._shared = memoryview(shared).cast("d")

    @property
    def interval(self) -> float:
        """Seconds that must pass between two requests; 0 unless requests have failed.

        If there is a shared file, these are requests of all processes of the machine, otherwise
        those of this process.
        """
        return self._shared[0]

    def take_turn(self, now: float) -> float:
        """Takes the right to make a request, if it is free.

        Args:
            now: The time, by `time.monotonic`.

        Returns:
            0 if the caller may make its request now; otherwise the seconds after which to call
            again.
        """
        if not self._spacing and not self.interval:
            return 0.0
        with self._locked():
            if self._own_turn < 0:
                self._own_turn = now + self._late_seconds
            interval, _, machine_turn = self._shared
            if interval and machine_turn > now + MAX_SECONDS:
                # The file is from before the machine was started again.
                self._shared[0] = 0.0
                interval = 0.0
            earliest = max(
                self._own_turn if self._spacing else now, machine_turn if interval else now
            )
            if earliest > now:
                return earliest - now
            self._own_turn = now + self._spacing
            self._shared[2] = now + self._jittered(interval)
            return 0.0

    def failed(self, asked: float, now: float) -> None:
        """Doubles the interval after a request has failed.

        Requests that were on their way at the same time double it only once together: a failure
        does not count if the interval, unless it is 0, has changed since the request was made.

        Args:
            asked: When the request that failed was made, by `time.monotonic`.
            now: The time, by `time.monotonic`.
        """
        with self._locked():
            interval, changed, _ = self._shared
            if interval and changed <= now and asked < changed:
                return
            interval = min(max(2 * interval, FIRST_SECONDS), MAX_SECONDS)
            self._set(interval, now, now + self._jittered(interval))

    def answered(self, asked: float, now: float) -> None:
        """Halves the interval after a request has been answered.

        It does nothing if the interval has changed since the request was made, or in the last
        SHRINK_SECONDS seconds.

        Args:
            asked: When the request that was answered was made, by `time.monotonic`.
            now: The time, by `time.monotonic`.
        """
        if not self.interval:
            return
        with self._locked():
            interval, changed, turn = self._shared
            if changed <= now < changed + SHRINK_SECONDS or asked < changed <= now:
                return
            interval = interval / 2 if interval / 2 > FREE_SECONDS else 0.0
            self._set(interval, now, min(turn, now + self._jittered(interval)))

    def _set(self, interval: float, changed: float, turn: float) -> None:
        """Writes the three numbers that the processes of a machine share.

        Args:
            interval: The interval between two requests, in seconds.
            changed: When the interval changed, by `time.monotonic`.
            turn: When the next request may be made, by `time.monotonic`.
        """
        self._shared[0] = interval
        self._shared[1] = changed
        self._shared[2] = turn

    def _jittered(self, seconds: float) -> float:
        """Returns a random number of seconds between `seconds / 2` and `seconds`."""
        return self._uniform(0.5, 1.0) * seconds

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the shared numbers, so that no other thread or process changes them meanwhile."""
        with self._lock:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.flock(self._file, fcntl.LOCK_UN)


def make_rate_file(path: Path) -> None:
    """Makes a file for `RateLimit`, with an interval of 0, unless it is there already.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab") as file:
        if file.tell() != _NUM_BYTES:
            file.truncate(_NUM_BYTES)
