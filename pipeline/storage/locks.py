"""Locks local files and folders, so that two jobs do not write to the same place.

The operating system releases a lock when its process ends, even if the process is killed.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

LOCK = ".lock"
"""Name of the file in a folder whose lock is the lock of the folder."""

_PAUSE_SECONDS = 0.2
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of filesystems that do not support locks."""


def take_lock(
    path: Path, protected: Path, patience_seconds: float, *, is_shared: bool = False
) -> IO[bytes]:
    """Opens a file and takes its lock.

    The job that held the lock before may have removed the file, or the whole folder, at its end.
    They are then made anew.

    Args:
        path: The lock file. It is created if needed, and its folder too.
        protected: The folder that the lock protects, for messages.
        patience_seconds: How long to wait for another holder, which may be about to end.
        is_shared: Whether other jobs may hold the lock at the same time, if they share it too.

    Returns:
        The open file. The lock is released when it is closed or the process ends.

    Raises:
        FileExistsError: Another job still holds the lock after `patience_seconds`.
        ValueError: The disk has no locks.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        is_held = False
        try:
            _wait_for_lock(file, protected, patience_seconds, is_shared=is_shared)
            is_held = _is_at(path, file)
        finally:
            if not is_held:
                file.close()
        if is_held:
            return file


def _wait_for_lock(
    file: IO[bytes], protected: Path, patience_seconds: float, *, is_shared: bool
) -> None:
    """Takes the lock of an open file; the arguments and errors are those of `take_lock`."""
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() - began >= patience_seconds:
                raise FileExistsError(
                    f"{protected} is in use by another job for {patience_seconds:.0f} s; wait for"
                    " it, stop it, or give another --output"
                ) from error
            time.sleep(_PAUSE_SECONDS)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            cure = "give an --output on a disk that has them, such as a local one"
            raise ValueError(f"{file.name}: this disk has no locks of files: {cure}") from error
        else:
            return


@contextlib.contextmanager
def locked_folder(
    folder: Path, name: str, patience_seconds: float, *, is_shared: bool = False
) -> Iterator[None]:
    """Keeps other jobs out of a local folder as long as the context lasts.

    The lock is on a file in the folder, which is removed at the end unless the lock is shared. A
    lock file that a killed job left behind locks nothing.

    Args:
        folder: The folder; it is created if needed.
        name: The name of the lock file.
        patience_seconds: How long to wait for another holder.
        is_shared: Whether other jobs may hold the lock at the same time, if they share it too.

    Raises:
        FileExistsError: Another job still holds the lock after `patience_seconds`.
        ValueError: The disk has no locks.
    """
    with locked_file(folder / name, folder, patience_seconds, is_shared=is_shared):
        yield


@contextlib.contextmanager
def locked_file(
    path: Path, protected: Path, patience_seconds: float, *, is_shared: bool = False
) -> Iterator[None]:
    """Holds the lock of a file as long as the context lasts.

    The file is removed at the end unless the lock is shared.

    Args:
        path: The lock file. It is created if needed, and its folder too.
        protected: The folder that the lock protects, for messages.
        patience_seconds: How long to wait for another holder.
        is_shared: Whether other jobs may hold the lock at the same time, if they share it too.

    Raises:
        FileExistsError: Another job still holds the lock after `patience_seconds`.
        ValueError: The disk has no locks.
    """
    with take_lock(path, protected, patience_seconds, is_shared=is_shared):
        try:
            yield
        finally:
            if not is_shared:  # a shared lock may still be held by other jobs
                path.unlink(missing_ok=True)


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Returns whether an open file is still the file at this path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
