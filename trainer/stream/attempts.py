"""Patience with a store: how often, how long and with what pauses one thing is asked for."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Protocol, TypeVar

from pipeline.storage.faults import DAMAGE_ATTEMPTS, CutFileError, Pauses

FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 15.0

Result = TypeVar("Result")


class ShardReadError(ValueError):
    """A shard could not be read in full. A ValueError, because what helps is to mend the store or the dataset."""


class DamageError(ValueError):
    """Bytes that are not what the tables say."""


class LeftBehindError(BaseException):
    """Ends a thread whose request took too long: another thread goes on with it."""


class Caller(Protocol):
    """Makes one request."""

    def __call__(self, seconds: float, function: Callable[[], Result]) -> Result:
        """Calls a function, which may take so many seconds.

        Raises:
            TimeoutError: It took longer; or LeftBehindError, where another thread is told so.
        """


class Attempts:
    """The attempts at one thing. One thread at a time makes them; another may go on after it."""

    def __init__(
        self, what: Callable[[], str], timeout_seconds: float, budget_seconds: float, stop: threading.Event
    ) -> None:
        """Time runs from here.

        Args:
            what: Names the thing, for messages.
            timeout_seconds: For each attempt.
            budget_seconds: For all of them and the pauses.
            stop: No more attempts once it is set.
        """
        self._what, self._stop = what, stop
        self._timeout_seconds, self._budget_seconds = timeout_seconds, budget_seconds
        self._began = time.monotonic()
        self._pauses = Pauses(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS)
        self._number = self._num_damaged = 0
        self._overdue: TimeoutError | None = None

    def begin(self) -> float:
        """The seconds that the next attempt may take.

        Raises:
            TimeoutError: The attempt of the thread before took longer.
        """
        if self._overdue is not None:
            error, self._overdue = self._overdue, None
            raise error
        self._number += 1
        left = self._budget_seconds - (time.monotonic() - self._began)
        return min(self._timeout_seconds, max(left, 0.001))

    def leave(self, error: TimeoutError) -> None:
        """The attempt is still under way and given up: whoever goes on begins with this error."""
        self._overdue = error

    def failed(self, error: Exception) -> None:
        """Waits before the next attempt: a random time that grows.

        Raises:
            FileNotFoundError: At once, as time does not mend it.
            ShardReadError: A local file is too short, or the budget is spent, or the bytes were wrong DAMAGE_ATTEMPTS
                times, or they were refused for REFUSAL_SECONDS.
        """
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{self._what()}: the file is missing; restore or rebuild the dataset") from error
        if isinstance(error, CutFileError):
            advice = "the file is cut short; restore it, or rebuild the dataset"
            raise ShardReadError(f"{self._what()}: {error}: {advice}") from error
        now = time.monotonic()
        pause, seconds = self._pauses.after(error, now), now - self._began
        self._num_damaged += isinstance(error, DamageError)
        is_spent = self._num_damaged >= DAMAGE_ATTEMPTS or pause <= 0 or seconds + pause > self._budget_seconds
        if is_spent or self._stop.wait(pause):
            raise ShardReadError(
                f"{self._what()}: gave up after {self._number} attempts in {seconds:.1f} s: {error or repr(error)};"
                " check the store, or verify the dataset and restore the file"
            ) from error


def retry(attempt: Callable[[float], Result], attempts: Attempts) -> Result:
    """Calls attempt(seconds allowed) until it returns; raises as `Attempts.failed`."""
    while True:
        try:
            return attempt(attempts.begin())
        except Exception as error:  # noqa: BLE001 - which of them are final is said there
            attempts.failed(error)


def no_answer(seconds: float) -> TimeoutError:
    """What is said of a request that took too long."""
    return TimeoutError(f"no answer within {seconds:g} s")


def call_within(seconds: float, function: Callable[[], Result]) -> Result:
    """Calls a function in a thread of its own, which is left behind where it does not return in time.

    Raises:
        TimeoutError: It did not.
    """
    result: Future[Result] = Future()
    threading.Thread(target=complete, args=(result, function), daemon=True, name="ranged-read").start()
    try:
        return result.result(seconds)
    except TimeoutError as error:
        if str(error):  # the function's own
            raise
        raise no_answer(seconds) from error


def complete(result: "Future[Result]", function: Callable[[], Result]) -> None:
    """Runs a function and gives its result or its exception to whoever waits, if that has not been called off.

    Raises:
        LeftBehindError: Another thread will.
    """
    try:
        found = function()
    except LeftBehindError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        with contextlib.suppress(InvalidStateError):
            result.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            result.set_result(found)
