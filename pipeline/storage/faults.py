"""Repeats requests to stores that fail, with pauses.

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
"""How often a request is made."""
FIRST_DELAY_SECONDS = 0.5
"""The longest pause after the first failure; each later limit is twice the one before."""
MAX_DELAY_SECONDS = 8.0
"""The longest pause between two attempts."""
REFUSAL_SECONDS = 30.0
"""How long a store that has answered before may refuse before it is believed."""
MOST_SECONDS = 120.0
"""No attempt begins later than this after the first one.

The number of attempts alone does not bound the time, because drivers retry by themselves as well.
"""
SLOW_SECONDS = 10.0
"""How long an attempt may take before a line says that it is still waiting."""
_GOOGLE = "storage.googleapis.com"
DAMAGE_ATTEMPTS = 3
"""How often damaged bytes are read from a store: the network may have damaged them."""

_answered: set[int] = set()
"""Hashes of the filesystems that have answered a request, so that a later refusal may pass."""

_buckets: set[tuple[int, str | None]] = set()
"""Hash of a filesystem and a bucket in it that exists, or whose existence cannot be asked for."""

Result = TypeVar("Result")


class StorageError(OSError, ValueError):
    """A file could not be read or written; the message names its URL, the cause and what to do."""


class NoBucketError(StorageError):
    """The bucket of a URL does not exist, so nothing in it can be read or written."""


class SizeError(OSError):
    """A store returned or stored another number of bytes than it should have."""


class CutFileError(SizeError):
    """A local file ends before the bytes that were asked for; reading again does not help."""


class _DriverError(OSError):
    """Replaces a ValueError that a driver raised about an answer of a store.

    In this project a ValueError is a user's mistake, and is not answered by another attempt.
    """


class Pauses:
    """Chooses the pauses between the attempts at one request: random, and growing to a limit."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        """Prepares the pauses of a new series of attempts, none of which has failed yet.

        Args:
            first_seconds: The longest pause after the first failure.
            max_seconds: The longest pause after any failure.
        """
        self._seconds = first_seconds
        self._max_seconds = max_seconds
        self._refused = math.inf  # time of the first refusal

    def after(self, error: Exception, now: float) -> float:
        """Returns the seconds to wait after a failure.

        Args:
            error: The failure.
            now: The time of the failure, in seconds of a monotonic clock.

        Returns:
            The pause. It is 0 or less if the store has refused for REFUSAL_SECONDS, which means
            that there should be no other attempt.
        """
        pause = SystemRandom().uniform(0.5, 1.0) * self._seconds
        self._seconds = min(2 * self._seconds, self._max_seconds)
        if is_refusal(error):
            self._refused = min(self._refused, now)
            pause = min(pause, self._refused + REFUSAL_SECONDS - now)  # the last attempt is in time
        return pause


def call_patiently(
    what: str, call: Callable[[], Result], attempts: int = ATTEMPTS, filesystem: Any = None
) -> Result:
    """Repeats a request until it succeeds or its error is final.

    No attempt begins later than MOST_SECONDS after the first one.

    Args:
        what: The request's URL, for messages.
        call: Makes the request.
        attempts: After how many failed attempts the request is given up. Denied permission does not
            count as a failure.
        filesystem: The fsspec filesystem that is asked. Without it, the first refusal is final.

    Raises:
        FileNotFoundError: Raised by `call`, and passed on at once.
        FileExistsError: Raised by `call`, and passed on at once.
        ValueError: Raised by `call`, and passed on at once.
        NoBucketError: The store has no such bucket.
        PermissionError: The store denies permission. This is raised at once if no earlier request
            to the filesystem has succeeded, and otherwise after REFUSAL_SECONDS.
        StorageError: The attempts or the time are used up, or the error is final.
    """
    patience = _Patience(what, attempts, filesystem)
    while True:
        try:
            with _reported_slowness(what):
                result = call()
        except (FileNotFoundError, FileExistsError, ValueError) as error:
            if says_no_bucket(error):
                raise _no_bucket(what, filesystem) from error
            if says_no_endpoint(error):
                cure = "give endpoint_url, or AWS_ENDPOINT_URL, as https://HOST[:PORT]"
                raise StorageError(f"{what}: {error}; {cure}") from error
            raise
        except Exception as error:  # noqa: BLE001 - `pause_after` raises it again if it is final
            time.sleep(patience.pause_after(error))
        else:
            if filesystem is not None:
                _answered.add(hash(filesystem))
            return result


class _Patience:
    """Counts the failures of one request, and decides whether it is made again."""

    def __init__(self, what: str, attempts: int, filesystem: Any) -> None:
        """Starts the clock; the arguments are those of `call_patiently`."""
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
            message = f"{self._what}: {spent}: {describe(error)}; {cure}"
            raise StorageError(message) from error
        if self._failures == 1 and not self._has_answered:
            say(f"{found}; trying again, for some {MOST_SECONDS:.0f} s", is_aside=True)
        return pause

    def _is_last(self, error: Exception, now: float) -> bool:
        """Returns whether the request is given up after a failure that is no refusal.

        It is if the attempts or the time are used up, or if the error is final. An error about an
        unknown host name is final unless the store has answered before.

        Args:
            error: The failure.
            now: The time of the failure, in seconds of a monotonic clock.
        """
        is_spent = self._failures == self._attempts or now - self._began > MOST_SECONDS
        is_unknown = not self._has_answered and is_unresolved(error)
        return is_spent or is_unknown or is_final(error)


def refuse_absent_bucket(what: str, filesystem: Any, path: str) -> None:
    """Raises NoBucketError if the bucket of a path does not exist.

    It is called after a path was not found. The answer that a bucket exists is remembered, so the
    store is asked once per process and bucket.

    Args:
        what: The URL, for messages.
        filesystem: The fsspec filesystem. If it has no buckets, nothing is checked.
        path: The path on the filesystem.

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
    """Returns the error about a bucket that does not exist.

    Args:
        what: The URL that was asked for.
        filesystem: The fsspec filesystem.
        bucket: The name of the bucket; None if it is not known.
    """
    named = f"bucket {bucket}" if bucket else "bucket"
    cure = "create it, or check its name and the endpoint (endpoint_url of --storage_options)"
    where = describe_endpoint(filesystem) or "the store"
    return NoBucketError(f"{what}: {where} has no {named}: {cure}")


@contextlib.contextmanager
def _reported_slowness(what: str) -> Iterator[None]:
    """Prints a line once the code in the context has taken SLOW_SECONDS.

    Otherwise a user would see nothing, because drivers repeat requests silently.

    Args:
        what: The URL of the request, for the line.
    """
    line = f"{what}: no answer for {SLOW_SECONDS:.0f} s, still waiting"
    timer = threading.Timer(SLOW_SECONDS, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def refuse_unresolved(url: str, options: Mapping[str, Any]) -> None:
    """Refuses a gs:// URL if the name of Google's host cannot be resolved.

    gcsfs would find that out only after minutes. URLs of other schemes pass, and so does gs:// if
    requests go to another endpoint or through a proxy.

    Raises:
        StorageError: The host name cannot be resolved.
    """
    is_elsewhere = options.get("endpoint_url") or "STORAGE_EMULATOR_HOST" in os.environ
    if url.startswith(("gs://", "gcs://")) and not (is_elsewhere or getproxies()):
        call_patiently(url, lambda: socket.getaddrinfo(_GOOGLE, 443))


def reread_damaged(
    read: Callable[[], Result], *, is_local: bool, is_expected: bool = False
) -> Result:
    """Reads files by a function that checks them, and reads them again if they are damaged.

    Files on a store are read up to DAMAGE_ATTEMPTS times. The error of the last attempt is raised.

    Args:
        read: Reads the files, and raises ValueError if the bytes are damaged, which can happen on
            the network.
        is_local: Whether the files are on a local disk, which is read once.
        is_expected: Whether the files are known to exist, so that they are read again after a
            FileNotFoundError as well.

    Raises:
        StorageError: The store did not answer; the files are not read again.
        FileNotFoundError: A file is missing, at every attempt if `is_expected`.
        ValueError: The bytes were damaged at every attempt.
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
    """Raises an OSError in place of a ValueError that a driver raises in the context.

    Drivers raise ValueError about answers of a store, for example if an answer is not JSON. Such a
    request may be repeated. But `call_patiently` does not repeat a request after a ValueError,
    because it takes the error for a user's mistake.

    Args:
        path: The file that was asked for, for the message.

    Raises:
        OSError: The driver raised a ValueError. A StorageError, and an error about an invalid
            endpoint, are passed on unchanged.
    """
    try:
        yield
    except ValueError as error:
        if isinstance(error, StorageError) or says_no_endpoint(error):
            raise
        raise _DriverError(f"{path}: {error!r}") from error
