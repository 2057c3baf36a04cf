"""Runs programs for the length of a `with` block. Each has a log and a process group."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

DEADLINE_SECONDS = 600.0
"""How long a program may take to be ready. Only a program that hangs takes as long."""


@contextlib.contextmanager
def running(
    name: str,
    command: str,
    folder: Path,
    is_ready: Callable[[str], bool],
    environment: Mapping[str, str],
) -> Iterator[int]:
    """Runs a program until the block is left, and yields its process id when it is ready.

    Args:
        name: The name of the program. Its log is NAME.log.
        command: The command, for bash.
        folder: The folder of the log, in which the command is run.
        is_ready: Returns whether the program is ready, from the text of its log so far.
        environment: Further variables of the environment.

    Raises:
        RuntimeError: The program ended, or was not ready in time. The message has the end of its
            log.
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
    """Returns an `is_ready` of `running` that asks whether something listens at a local port."""

    def answers(_: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return True
        return False

    return answers


def says(words: str) -> Callable[[str], bool]:
    """Returns an `is_ready` of `running` that asks whether the log contains these words."""
    return lambda said: words in said
