"""Files at any fsspec URL: opened, listed, read by range with a length check, written whole or not at all.

Requests to stores are tried ATTEMPTS times where the error is one that passes (`is_transient`), with growing random
pauses of at most 16 s in all, besides what the store's own driver tries. A store that has answered before and now
refuses is asked again for REFUSAL_SECONDS: a key may be in renewal. Local disks are asked once.
"""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.storage.missing_packages import describe_missing
from pipeline.storage.names import stays_below
from pipeline.storage.secret_values import find_password, learn

TEMPORARY_MARK = ".partial-"
ATTEMPTS = 6
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0
REFUSAL_SECONDS = 30.0
DAMAGE_ATTEMPTS = 3  # wrong bytes may come from the wire; else they stay

_TEMPORARY_NAME = re.compile(r"\..+\.partial-\d+-[0-9a-f]{8}")
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED_STATUS = {401, 403}
_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}
_TRANSIENT_ERRNO = {errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EREMOTEIO, errno.ENETUNREACH, errno.EHOSTUNREACH}
# By name, because drivers are optional: botocore's, aiohttp's, requests', urllib3's and gcsfs' errors of transport.
_TRANSIENT_CLASSES = {
    "HTTPClientError", "ResponseParserError", "ClientConnectionError", "ClientPayloadError", "Timeout",
    "ConnectionError", "ChunkedEncodingError", "IncompleteRead", "ChecksumError",
}  # fmt: skip

_answered: set[int] = set()
"""Filesystems, by their hash, of which a request was not refused: what they refuse later may pass."""

Result = TypeVar("Result")


class StorageError(OSError, ValueError):
    """A file was not read or written; the message names URL, cause and what to do. A ValueError: no fault of ours."""


class SizeError(OSError):
    """A store returned or kept another number of bytes than it should."""


class CutFileError(SizeError):
    """A file on a local disk ends before the bytes that were asked for; asking again does not help."""


class _DriverError(OSError):
    """A driver raised a ValueError, such as over an answer that is no JSON; ours say what a user did."""


def parse_storage_options(text: str | None) -> Mapping[str, Any] | None:
    """Options of a filesystem from a JSON object or @FILE holding one; None for none.

    Raises:
        ValueError: Not a JSON object; its text is not shown, it may hold secrets.
        FileNotFoundError: There is no such file.
    """
    if text is None:
        return None
    content = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    try:
        options = json.loads(content)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        example = '{"anon": true}'
        raise ValueError(f"storage_options is not a JSON object such as {example}, nor @FILE holding one")  # noqa: TRY004
    learn(options)
    return options


def open_filesystem(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The filesystem of a URL or local path, and the path on it.

    Raises:
        ValueError: No filesystem is known for the URL's protocol, or its driver is not installed.
    """
    learn(storage_options)
    if "@" in url and (password := find_password(url)):
        learn({"password": password})
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **(storage_options or {}))
    except (ImportError, ValueError) as error:
        raise ValueError(f"{url}: cannot be opened: {describe_missing(error) or error}") from error
    return filesystem, str(path).rstrip("/")


def is_local(filesystem: Any) -> bool:
    """Whether files are on this machine's own disks, where a rename is atomic."""
    return isinstance(filesystem, LocalFileSystem)


def write_atomic(filesystem: Any, path: str, data: bytes | Path) -> None:
    """Writes a file whole or not at all: by rename on local disks, by one upload and a size check elsewhere.

    Args:
        filesystem: From `open_filesystem`.
        path: On it.
        data: Its bytes; or a local file that holds them, which is copied without being held in memory.

    Raises:
        StorageError: The disk is full, or the store did not take the file; nothing is there under its name.
        PermissionError: The store refuses.
    """
    if is_local(filesystem):
        replace_local(path, data)
    else:
        ask(filesystem, path, lambda: _upload(filesystem, path, data))


def read_range(
    filesystem: Any,
    path: str,
    start: int,
    stop: int,
    attempts: int = ATTEMPTS,
    reader: Callable[[str, int, int], bytes] | None = None,
) -> bytes:
    """Bytes start to stop - 1 of a file.

    Args:
        filesystem: From `open_filesystem`.
        path: On it.
        start: First byte.
        stop: One after the last byte.
        attempts: On stores; 1 for callers that try again themselves, who then see the error as it came.
        reader: Reads in place of the filesystem.

    Raises:
        SizeError: The store returned another number of bytes than asked for: some cut a body short without an error.
        CutFileError: So did a local disk; an OSError and a SizeError.
        StorageError: It did so, or failed otherwise, in every attempt; an OSError.
    """

    def attempt() -> bytes:
        with _driver_errors(path):
            data: bytes = reader(path, start, stop) if reader else filesystem.cat_file(path, start=start, end=stop)
        if len(data) != stop - start:
            is_cut = is_local(filesystem) and Path(path).stat().st_size < stop
            kind = CutFileError if is_cut else SizeError
            raise kind(f"{path}: asked for bytes {start}-{stop}, got {len(data)} of {stop - start}")
        return data

    if is_local(filesystem) or attempts == 1:
        return attempt()
    return call_patiently(f"{locate(filesystem, path)}, bytes {start}-{stop}", attempt, attempts, filesystem)


def read_file(filesystem: Any, path: str) -> bytes:
    """A whole file, its length checked against the store's listing."""
    return read_range(filesystem, path, 0, file_size(filesystem, path))


def file_size(filesystem: Any, path: str, attempts: int = ATTEMPTS) -> int:
    """A file's bytes, by the store's listing; attempts as in `read_range`."""

    def attempt() -> int:
        with _driver_errors(path):
            return int(filesystem.size(path))

    return ask(filesystem, path, attempt, attempts)


def file_exists(filesystem: Any, path: str) -> bool:
    """Whether a file or a folder is there."""
    return ask(filesystem, path, lambda: bool(filesystem.exists(path)))


def is_file(filesystem: Any, path: str) -> bool:
    """Whether a file is there, and no folder."""
    return ask(filesystem, path, lambda: bool(filesystem.isfile(path)))


def list_files(filesystem: Any, folder: str) -> dict[str, int]:
    """Sizes in bytes of every file below a folder by its path relative to it; empty where there is no folder.

    Raises:
        ValueError: A store holds a key that would lead out of the folder if it were a path.
    """
    filesystem.invalidate_cache()
    found = ask(filesystem, folder, lambda: filesystem.find(folder, detail=True))
    prefix = f"{folder}/"
    sizes = {name.removeprefix(prefix): int(info["size"]) for name, info in sorted(found.items())}
    for name in sizes:
        _refuse_leaving(filesystem, folder, name)
    return sizes


def remove_files(filesystem: Any, folder: str, names: list[str]) -> None:
    """Removes files below a folder, named relative to it, and on local disks the folders that this empties.

    Raises:
        ValueError: A name leads out of the folder; nothing is removed.
    """
    for name in names:
        _refuse_leaving(filesystem, folder, name)
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # an attempt before may have removed it without an answer
            ask(filesystem, f"{folder}/{name}", partial(filesystem.rm_file, f"{folder}/{name}"))
    if is_local(filesystem):
        for parent in sorted({str(Path(folder, name).parent) for name in names}, key=len, reverse=True):
            _remove_empty_folders(parent, folder)


def _refuse_leaving(filesystem: Any, folder: str, name: str) -> None:
    if not stays_below(name):
        where = locate(filesystem, folder)
        raise ValueError(f"{where}: found the key {name!r}, which leads out of the folder; remove that object")


def find_temporaries(names: Mapping[str, int] | list[str]) -> list[str]:
    """Those among file names that `write_atomic` would have renamed, had its process not been killed."""
    return [name for name in names if _TEMPORARY_NAME.fullmatch(name.rpartition("/")[2])]


def locate(filesystem: Any, path: str) -> str:
    """A path as a URL, for messages; on local disks the path."""
    return path if is_local(filesystem) else str(filesystem.unstrip_protocol(path))


def call_patiently(what: str, call: Callable[[], Result], attempts: int = ATTEMPTS, filesystem: Any = None) -> Result:
    """Calls a function until it returns, as long as its error is one that passes.

    Args:
        what: Names the request, for messages.
        call: Makes it.
        attempts: That may fail, refusals not counted.
        filesystem: That is asked; without one a refusal is believed at once.

    Raises:
        FileNotFoundError, FileExistsError, ValueError: At once, as they came.
        PermissionError: With the URL; at once where the store has answered nothing yet, else after REFUSAL_SECONDS.
        StorageError: The attempts are used up, or the error will not pass.
    """
    began, delay, failures, refused = time.monotonic(), FIRST_DELAY_SECONDS, 0, math.inf
    while True:
        try:
            result = call()
        except (FileNotFoundError, FileExistsError, ValueError):
            raise
        except Exception as error:
            now, pause = time.monotonic(), SystemRandom().uniform(0.5, 1.0) * delay
            if is_refusal(error):
                refused = min(refused, now)
                pause = min(pause, refused + REFUSAL_SECONDS - now)  # the last attempt is at the end of patience
                if hash(filesystem) not in _answered or pause <= 0:
                    raise PermissionError(f"{what}: {error or 'refused'}; check the credentials and the URL") from error
            else:
                failures += 1
                _raise_unless_passing(what, error, failures, attempts, now - began)
        else:
            if filesystem is not None:
                _answered.add(hash(filesystem))
            return result
        time.sleep(pause)
        delay = min(2 * delay, MAX_DELAY_SECONDS)


def _raise_unless_passing(what: str, error: Exception, failures: int, attempts: int, seconds: float) -> None:
    passes, cause = is_transient(error), str(error) or repr(error)
    if not passes or failures == attempts:
        advice = "run the same command again when the store answers" if passes else "check the URL and settings"
        spent = f"gave up after {failures} attempt(s) in {seconds:.1f} s"
        raise StorageError(f"{what}: {spent}: {cause}; {advice}") from error


def ask(filesystem: Any, path: str, call: Callable[[], Result], attempts: int = ATTEMPTS) -> Result:
    """Calls a function that asks a filesystem for a file: patiently, but once where the disk is local or attempts 1."""
    if is_local(filesystem) or attempts == 1:
        return call()
    return call_patiently(locate(filesystem, path), call, attempts, filesystem)


def reread_damaged(filesystem: Any, read: Callable[[], Result]) -> Result:
    """Calls a function that reads and checks files, DAMAGE_ATTEMPTS times where it finds a store's bytes damaged.

    Raises:
        ValueError: They are every time; or on a local disk, which is read once. As the function raised it.
    """
    for left in reversed(range(1 if is_local(filesystem) else DAMAGE_ATTEMPTS)):
        try:
            return read()
        except ValueError as error:
            if isinstance(error, OSError) or not left:  # an OSError: the store did not answer
                raise
        time.sleep(SystemRandom().uniform(0.5, 1.0) * FIRST_DELAY_SECONDS)
    raise AssertionError("unreachable")


def is_refusal(error: BaseException) -> bool:
    """Whether a store said that a request is not allowed."""
    return isinstance(error, PermissionError) or _status(error) in _REFUSED_STATUS


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: time-outs, connections lost, overload and server errors, bodies cut short."""
    if (status := _status(error)) is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, TimeoutError | ConnectionError | SizeError | _DriverError):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return any(each.__name__ in _TRANSIENT_CLASSES for each in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """What the store's answer has as its status, where the error tells."""
    status = str(getattr(error, "code", None) or getattr(error, "status", None))
    return int(status) if status.isdigit() else None


@contextlib.contextmanager
def _driver_errors(path: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise _DriverError(f"{path}: {error!r}") from error


def _upload(filesystem: Any, path: str, data: bytes | Path) -> None:
    # Never `with fs.open(path, "wb")` around a producer: leaving it by an exception publishes the partial object.
    if isinstance(data, Path):
        filesystem.put_file(str(data), path)
    else:
        filesystem.pipe_file(path, data)
    filesystem.invalidate_cache()
    stored = filesystem.size(path)
    if stored != _size_of(data):
        filesystem.rm_file(path)
        raise SizeError(f"{_size_of(data)} bytes were uploaded, the store held {stored}, which were removed")


def _size_of(data: bytes | Path) -> int:
    return data.stat().st_size if isinstance(data, Path) else len(data)


def replace_local(path: str, data: bytes | Path) -> None:
    """Writes a file on this machine's disks whole or not at all; when it returns, a loss of power does not undo it.

    Raises:
        StorageError: The disk is full; what was there before still is.
    """
    folder, name = os.path.split(path)
    make_folder(Path(folder))
    temporary = Path(folder, f".{name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        make_durable(Path(folder))
    except OSError as error:
        if error.errno not in _DISK_IS_FULL:
            raise
        advice = "free some space and run the same command again; what is finished is kept"
        raise StorageError(f"{path}: no room for its {_size_of(data)} bytes: {error.strerror}; {advice}") from error
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Makes a folder on a local disk and those above it that are missing, for good."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        make_durable(folder.parent)


def make_durable(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some network disks know no fsync of folders
            raise
    finally:
        os.close(descriptor)


def _remove_empty_folders(folder: str, top: str) -> None:
    current = Path(folder)
    while current != Path(top) and current.is_dir() and not any(current.iterdir()):
        current.rmdir()
        current = current.parent
