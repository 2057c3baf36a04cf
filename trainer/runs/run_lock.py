"""One job at a time in a run's folder: ranks of a killed launcher may still be leaving.

The lock's content is drawn by the job that holds it, so a rank that reads it there sees the folder
of rank 0.
"""

import contextlib
import fcntl
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trainer.runs.continuing import LOCK
from trainer.runs.run_folder import RunFolder

PATIENCE_SECONDS = 60.0

_held: list[IO[bytes]] = []  # kept open: the system lets go when the process ends, however it does


def lock_run(run: RunFolder, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Waits until no other job trains in the folder, and keeps others out until this process ends.

    Raises:
        FileExistsError: Another job is still there after so many seconds.
    """
    if not run.is_foreign:  # else `prepare_run` refuses it
        _held.append(_lock(run.path, patience_seconds))


@contextlib.contextmanager
def locked(folder: Path, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Keeps other jobs out of a folder, which is made where there is none; raises as lock_run()."""
    with _lock(folder, patience_seconds):
        yield


def _lock(folder: Path, patience_seconds: float) -> IO[bytes]:
    """A file that keeps others out as long as it is open."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file, expected a folder; give another --output")
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("ab")
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() - began > patience_seconds:
                file.close()
                raise FileExistsError(
                    f"{folder} is in use by another job for {patience_seconds:.0f} s; wait for it, stop it, or give "
                    "another --output"
                ) from error
            time.sleep(0.2)
        else:
            file.truncate(0)
            file.write(secrets.token_bytes(16))
            file.flush()
            return file
