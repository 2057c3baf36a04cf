"""Repeats requests to stores: how often, and with what pauses.

A request is made up to ATTEMPTS times, unless its error is final
(`pipeline.storage.driver_errors`), with growing random pauses of at most 16 s in total. If a store
has answered before and now refuses, it is asked again for REFUSAL_SECONDS, because a key may be in
renewal. A host name that cannot be resolved is tried once, unless the store has answered before. A
local disk is always tried once.
"""

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from random import SystemRandom
from typing import Any, TypeVar
from urllib.request import getproxies

from pipeline.storage.driver_errors import (
    ask_for_bucket,
    describe,
    describe_endpoint,
    find_bucket,
    find_cure,
    is_final,
    is_refusal,
    is_unresolved,
    says_no_bucket,
    says_no_endpoint,
)
from pipeline.storage.terminal import say

ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0
REFUSAL_SECONDS = 30.0
MOST_SECONDS = 120.0  # no attempt begins later; drivers try again inside of ours
SLOW_SECONDS = 10.0
_GOOGLE = "storage.googleapis.com"
DAMAGE_ATTEMPTS = 3  # wrong bytes may come from the wire; else they stay

_answered: set[int] = set()
"""Filesystems, by their hash, that once refused no request: what they refuse later may pass."""

_buckets: set[tuple[int, str | None]] = set()
"""Buckets, each with its filesystem's hash, that are there or cannot be asked for."""

Result = TypeVar("Result")


class StorageError(OSError, ValueError):
    """A file was not read or written; the message names URL, cause and what to do."""


class NoBucketError(StorageError):
    """The bucket of a URL does not exist, so nothing in it can be read or written."""


class SizeError(OSError):
    """A store returned or kept another number of bytes than it should."""


class CutFileError(SizeError):
    """A local file ends before the bytes that were asked for; asking again does not help."""


class _DriverError(OSError):
    """A driver raised a ValueError; ours say what a user did."""


class Pauses:
    """The pauses between attempts at one thing: random, and growing to a limit."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._seconds, self._max_seconds, self._refused = first_seconds, max_seconds, math.inf

    def after(self, error: Exception, now: float) -> float:
        """Seconds to wait after a failure; 0 or less where it was refused for REFUSAL_SECONDS."""
        pause = SystemRandom().uniform(0.5, 1.0) * self._seconds
        self._seconds = min(2 * self._seconds, self._max_seconds)
        if is_refusal(error):
            self._refused = min(self._refused, now)
            pause = min(pause, self._refused + REFUSAL_SECONDS - now)  # the last is at the end
        return pause


def call_patiently(
    what: str, call: Callable[[], Result], attempts: int = ATTEMPTS, filesystem: Any = None
) -> Result:
    """Calls a function that makes a request until it returns or its error is final.

    Args:
        what: Names the request in messages, by its URL.
        call: Makes the request.
        attempts: How many attempts may fail; refusals do not count.
        filesystem: The store that is asked. Without it, the first refusal is final.

    Raises:
        FileNotFoundError, FileExistsError, ValueError: Raised by `call`, and passed on at once.
        NoBucketError: The store has no such bucket.
        PermissionError: The store refuses: at once if it has never answered, otherwise after
            REFUSAL_SECONDS.
        StorageError: The attempts are used up, or the error is final.
    """
    patience = _Patience(what, attempts, filesystem)
    while True:
        try:
            with _slowness_said(what):
                result = call()
        except (FileNotFoundError, FileExistsError, ValueError) as error:
            if says_no_bucket(error):
                raise _no_bucket(what, filesystem) from error
            if says_no_endpoint(error):
                cure = "give endpoint_url, or AWS_ENDPOINT_URL, as https://HOST[:PORT]"
                raise StorageError(f"{what}: {error}; {cure}") from error
            raise
        except Exception as error:  # noqa: BLE001 - raised again where it is final
            time.sleep(patience.pause_after(error))
        else:
            if filesystem is not None:
                _answered.add(hash(filesystem))
            return result


class _Patience:
    """The failures of one request of `call_patiently`; decides whether it is made again."""

    def __init__(self, what: str, attempts: int, filesystem: Any) -> None:
        self._what = what
        self._attempts = attempts
        self._filesystem = filesystem
        self._has_answered = hash(filesystem) in _answered
        self._began = time.monotonic()
        self._failures = 0
        self._pauses = Pauses(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS)

    def pause_after(self, error: Exception) -> float:
        """Returns the seconds to wait before the next attempt.

        Raises:
            PermissionError: The refusal is final.
            StorageError: No attempt is left, or the error is final.
        """
        now = time.monotonic()
        pause = self._pauses.after(error, now)
        found = f"{self._what}: {describe(error)}"
        if is_refusal(error):
            if not self._has_answered or pause <= 0:
                cure = find_cure(error, self._filesystem)
                raise PermissionError(f"{found}; {cure}") from error
            return pause
        self._failures += 1
        if self._is_last(error, now):
            spent = f"gave up after {self._failures} attempt(s) in {now - self._began:.1f} s"
            cure = find_cure(error, self._filesystem)
            said = f"{self._what}: {spent}: {describe(error)}; {cure}"
            raise StorageError(said) from error
        if self._failures == 1 and not self._has_answered:
            say(f"{found}; trying again, for some {MOST_SECONDS:.0f} s", is_aside=True)
        return pause

    def _is_last(self, error: Exception, now: float) -> bool:
        is_spent = self._failures == self._attempts or now - self._began > MOST_SECONDS
        is_unknown = not self._has_answered and is_unresolved(error)
        return is_spent or is_unknown or is_final(error)


def refuse_absent_bucket(what: str, filesystem: Any, path: str) -> None:
    """Asks whether the bucket of a path exists, after nothing was found at the path.

    Each bucket is asked for once per process.

    Raises:
        NoBucketError: The store says that the bucket does not exist. If the store gives no answer,
            for example because the key lacks the right to ask, nothing is raised.
    """
    bucket = find_bucket(filesystem, path)
    place = hash(filesystem), bucket
    if bucket is None or place in _buckets:
        return
    try:
        call_patiently(what, lambda: ask_for_bucket(filesystem, bucket))
    except FileNotFoundError as error:
        raise _no_bucket(what, filesystem, bucket) from error
    except NoBucketError:
        raise
    except OSError:
        pass
    _buckets.add(place)


def _no_bucket(what: str, filesystem: Any, bucket: str | None = None) -> "NoBucketError":
    named = f"bucket {bucket}" if bucket else "bucket"
    cure = "create it, or check its name and the endpoint (endpoint_url of --storage_options)"
    where = describe_endpoint(filesystem) or "the store"
    return NoBucketError(f"{what}: {where} has no {named}: {cure}")


@contextlib.contextmanager
def _slowness_said(what: str) -> Iterator[None]:
    """Says so once where a driver, which tries again by itself, does not answer for long."""
    line = f"{what}: no answer for {SLOW_SECONDS:.0f} s, still waiting"
    timer = threading.Timer(SLOW_SECONDS, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def refuse_unresolved(url: str, options: Mapping[str, Any]) -> None:
    """Refuses a gs:// URL at once where Google's name is not known, as gcsfs takes minutes to."""
    is_elsewhere = options.get("endpoint_url") or "STORAGE_EMULATOR_HOST" in os.environ
    if url.startswith(("gs://", "gcs://")) and not (is_elsewhere or getproxies()):
        call_patiently(url, lambda: socket.getaddrinfo(_GOOGLE, 443))


def reread_damaged(
    read: Callable[[], Result], *, is_local: bool, is_expected: bool = False
) -> Result:
    """Calls a function that reads files; on a store up to DAMAGE_ATTEMPTS times.

    Args:
        read: Raises ValueError if the bytes are damaged, which can happen on the network.
        is_local: Whether the files are on a local disk, which is read once.
        is_expected: Whether the files are known to exist, so that after a FileNotFoundError they
            are read again too.
    """
    for _ in range(0 if is_local else DAMAGE_ATTEMPTS - 1):
        try:
            return read()
        except StorageError:  # the store did not answer
            raise
        except FileNotFoundError:
            if not is_expected:
                raise
        except ValueError:
            pass
        time.sleep(SystemRandom().uniform(0.5, 1.0) * FIRST_DELAY_SECONDS)
    return read()


@contextlib.contextmanager
def driver_errors(path: str) -> Iterator[None]:
    """Takes a driver's ValueError, as over an answer that is no JSON, for an error that passes."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, StorageError) or says_no_endpoint(error):
            raise
        raise _DriverError(f"{path}: {error!r}") from error
