"""Errors of stores: which of them pass, how often a request is tried, and with what pauses.

Requests are tried ATTEMPTS times where the error passes, with growing random pauses of at most 16 s
in all. A store that has answered before and now refuses is asked again for REFUSAL_SECONDS, as a
key may be in renewal. An unknown name, until the store has answered, and local disks are asked
once.
"""

import contextlib
import errno
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from random import SystemRandom
from typing import Any, TypeVar
from urllib.request import getproxies

from pipeline.storage.secret_values import hide

ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0
REFUSAL_SECONDS = 30.0
MOST_SECONDS = 120.0  # no attempt begins later; drivers try again inside of ours
SLOW_SECONDS = 10.0
_GOOGLE = "storage.googleapis.com"
DAMAGE_ATTEMPTS = 3  # wrong bytes may come from the wire; else they stay

_REFUSED_STATUS = {401, 403}
# 412 is the Hub's, where another commit came first.
_TRANSIENT_STATUS = {408, 412, 429, 500, 502, 503, 504}
_TRANSIENT_ERRNO = {
    errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EREMOTEIO, errno.ENETUNREACH, errno.EHOSTUNREACH,
}  # fmt: skip
# By name, because drivers are optional: errors of transport of botocore, aiohttp, requests,
# urllib3, gcsfs and httpx; and where a machine has no key, or one that is out.
_TRANSIENT_NAMES = """
HTTPClientError ResponseParserError ClientConnectionError ClientPayloadError Timeout ConnectionError
ChunkedEncodingError IncompleteRead ChecksumError TransportError
"""
_REFUSAL_NAMES = "NoCredentialsError PartialCredentialsError DefaultCredentialsError RefreshError"

_answered: set[int] = set()
"""Filesystems, by their hash, that once refused no request: what they refuse later may pass."""

Result = TypeVar("Result")


class StorageError(OSError, ValueError):
    """A file was not read or written; the message names URL, cause and what to do."""


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
    """Calls a function that makes the request `what` until it returns or its error will not pass.

    So many attempts may fail, refusals not counted. Without a filesystem a refusal is believed.

    Raises:
        FileNotFoundError, FileExistsError, ValueError: At once, as they came.
        PermissionError: At once where the store has answered nothing yet, else after
            REFUSAL_SECONDS.
        StorageError: The attempts are used up, or the error will not pass.
    """
    began, failures, pauses = time.monotonic(), 0, Pauses(FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS)
    has_answered = hash(filesystem) in _answered
    while True:
        try:
            with _slowness_said(what):
                result = call()
        except (FileNotFoundError, FileExistsError, ValueError):
            raise
        except Exception as error:
            now = time.monotonic()
            pause, said = pauses.after(error, now), str(error) or repr(error)
            if is_refusal(error):
                if not has_answered or pause <= 0:
                    advice = "check the credentials and the URL"
                    raise PermissionError(f"{what}: {said}; {advice}") from error
            else:
                failures += 1
                is_last = failures == attempts or now - began > MOST_SECONDS
                is_last |= not is_transient(error) or (not has_answered and is_unresolved(error))
                if is_last:
                    spent = f"gave up after {failures} attempt(s) in {now - began:.1f} s"
                    raise StorageError(f"{what}: {spent}: {said}; {_advice(error)}") from error
                if failures == 1 and not has_answered:
                    say(f"{what}: {said}; trying again, for some {MOST_SECONDS:.0f} s")
        else:
            if filesystem is not None:
                _answered.add(hash(filesystem))
            return result
        time.sleep(pause)


def say(line: str) -> None:
    """A line for people on standard error, without secrets."""
    sys.stderr.write(f"{hide(line)}\n")
    sys.stderr.flush()


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


def _advice(error: Exception) -> str:
    if is_unresolved(error):
        return "check the URL and that this machine has a network"
    passes = "run the same command again when the store answers"
    return passes if is_transient(error) else "check the URL and settings"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, what caused that."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def is_unresolved(error: BaseException) -> bool:
    """Whether the name of a store's machine is not known."""
    return any(isinstance(each, socket.gaierror) for each in causes(error))


def refuse_unresolved(url: str, options: Mapping[str, Any]) -> None:
    """Refuses a gs:// URL at once where Google's name is not known, as gcsfs takes minutes to."""
    is_elsewhere = options.get("endpoint_url") or "STORAGE_EMULATOR_HOST" in os.environ
    if url.startswith(("gs://", "gcs://")) and not (is_elsewhere or getproxies()):
        call_patiently(url, lambda: socket.getaddrinfo(_GOOGLE, 443))


def reread_damaged(read: Callable[[], Result], *, is_local: bool) -> Result:
    """Calls a function that reads files, again where a ValueError says that bytes are damaged."""
    for _ in range(0 if is_local else DAMAGE_ATTEMPTS - 1):
        try:
            return read()
        except ValueError as error:
            if isinstance(error, OSError):  # the store did not answer
                raise
        time.sleep(SystemRandom().uniform(0.5, 1.0) * FIRST_DELAY_SECONDS)
    return read()


def is_refusal(error: BaseException) -> bool:
    """Whether a store said that a request is not allowed, or its driver has no key to ask with."""
    is_refused = isinstance(error, PermissionError) or _status(error) in _REFUSED_STATUS
    return is_refused or _is_one_of(_REFUSAL_NAMES, error)


def _is_one_of(names: str, error: BaseException) -> bool:
    return not {each.__name__ for each in type(error).__mro__}.isdisjoint(names.split())


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: time-outs, lost connections, overload, bodies cut short."""
    if type(error) is RuntimeError and error.__cause__:  # huggingface_hub wraps a thread's error
        return is_transient(error.__cause__)
    if (status := _status(error)) is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, TimeoutError | ConnectionError | SizeError | _DriverError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return _is_one_of(_TRANSIENT_NAMES, error)


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    places = ((error, "code"), (error, "status"), (response, "status_code"))
    found = [str(value) for owner, name in places if (value := getattr(owner, name, None))]
    return int(found[0]) if found and found[0].isdigit() else None


@contextlib.contextmanager
def driver_errors(path: str) -> Iterator[None]:
    """Takes a driver's ValueError, as over an answer that is no JSON, for an error that passes."""
    try:
        yield
    except ValueError as error:
        raise _DriverError(f"{path}: {error!r}") from error
