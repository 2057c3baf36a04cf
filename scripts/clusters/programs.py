"""Programs that end with a block: each has a log, and is stopped by its process group."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

DEADLINE_SECONDS = 600.0
"""Not a claim: only what hangs takes as long."""


@contextlib.contextmanager
def running(
    name: str,
    command: str,
    folder: Path,
    is_ready: Callable[[str], bool],
    environment: Mapping[str, str],
) -> Iterator[int]:
    """A program that is ready by what NAME.log says, until the block is left; its process id.

    Raises:
        RuntimeError: It ended, or was not ready in time; with the end of its log.
    """
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment),
            start_new_session=True,
            cwd=folder,
        )
    try:
        _wait_until_ready(process, name, log, is_ready)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", name: str, log: Path, is_ready: Callable[[str], bool]
) -> None:
    began = time.monotonic()
    while not is_ready(said := log.read_text(errors="replace")):
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}:\n{said[-3000:]}")
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise RuntimeError(
                f"{name} was not ready after {DEADLINE_SECONDS:.0f} s:\n{said[-3000:]}"
            )
        time.sleep(0.1)


def listens(port: int) -> Callable[[str], bool]:
    """Whether something listens at a port of this machine, whatever its log says."""

    def answers(_: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return True
        return False

    return answers


def says(words: str) -> Callable[[str], bool]:
    """Whether the log has these words."""
    return lambda said: words in said
