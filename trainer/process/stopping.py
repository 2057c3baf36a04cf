"""When a rank is told to stop: by a signal, or because its launcher is gone.

The `deepspeed` command starts `deepspeed.launcher.launch`, which starts the ranks. A signal that
ends the former alone reaches nobody else, so every rank watches both in Linux's /proc (torchrun
likewise) and leaves when one of them is gone.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from pipeline.interrupts import heard, leave_interrupted

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STOPPED = 128 + signal.SIGTERM
"""Exit code of a run that was told to stop and saved; after Ctrl-C 128 + SIGINT."""

OUTCOME_FILE = "BEAMBERT_OUTCOME_FILE"
LAUNCHER_PROGRAMS = {"deepspeed", "ds", "torchrun"}
LAUNCHER_MODULES = ("deepspeed.launcher.", "torch.distributed.run", "torch.distributed.launch")
POLL_SECONDS = 0.5
GRACE_SECONDS = 8.0
LAUNCHERS_GRACE_SECONDS = 30.0
"""The seconds that launchers give their ranks after Ctrl-C before they kill them."""


class LauncherWatch:
    """Calls `on_loss` once when the launcher is gone, and ends the process after grace_seconds.

    Without `on_loss`, as before there is something to save, it leaves at once.
    """

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Watches the launchers among this process's parents; without any it does nothing."""
        self.on_loss: Callable[[], None] | None = None
        self.grace_seconds = grace_seconds
        self._launchers = find_launchers()
        self.has_launcher = bool(self._launchers)
        commands = [" ".join(_arguments(pid)[:3]) for pid in self._launchers]
        self.has_deepspeed = any("deepspeed" in command for command in commands)
        if self.has_launcher:
            threading.Thread(target=self._watch, name="launcher watch", daemon=True).start()

    def _watch(self) -> None:
        while all(_started(pid) == started for pid, started in self._launchers.items()):
            time.sleep(POLL_SECONDS)
        if self.on_loss is not None:
            self.on_loss()
            time.sleep(self.grace_seconds)
        os._exit(STOPPED)


def find_launchers() -> dict[int, str]:
    """Process ids of this process's next parents that are launchers, and when each began."""
    found: dict[int, str] = {}
    pid = os.getppid()
    while (started := _started(pid)) and is_launcher(_arguments(pid)):
        found[pid] = started
        pid = int(_stat(pid)[1])
    return found


def is_launcher(arguments: list[str]) -> bool:
    """Whether a command line is `python .../deepspeed` or `python -m deepspeed.launcher.launch`."""
    for index, argument in enumerate(arguments[:5]):
        if argument == "-m":
            return "".join(arguments[index + 1 : index + 2]).startswith(LAUNCHER_MODULES)
        if not argument.startswith("-") and Path(argument).name in LAUNCHER_PROGRAMS:
            return True
    return False


class StopRequest:
    """Whether this rank was told to stop: by SIGINT after Ctrl-C, otherwise by SIGTERM."""

    def __init__(self) -> None:
        self.is_made = False
        self.number = int(signal.SIGTERM)

    def make(self, number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
        """Tells this rank to stop."""
        self.is_made = True
        if number == signal.SIGINT:
            self.number = number


@contextlib.contextmanager
def stops_requested(
    watch: LauncherWatch, stop: StopRequest, say: Callable[[str], None], notice: str
) -> Iterator[None]:
    """Makes a stop signal or the loss of the launcher a request while this holds.

    The first Ctrl-C says the notice; as it ends the `deepspeed` command at once, patience with a
    lost launcher grows. A second one leaves at once, also where the main thread waits for ever.
    """
    interrupts: list[int] = []

    def hear(number: int) -> None:
        # DeepSpeed's launcher sends SIGTERM after the first Ctrl-C, torchrun in place of another.
        is_torchruns = number == signal.SIGTERM and watch.has_launcher and not watch.has_deepspeed
        if interrupts and (number == signal.SIGINT or is_torchruns):
            leave_interrupted(signal.SIGINT)
        stop.make(number)
        if number == signal.SIGINT:
            interrupts.append(number)
            watch.grace_seconds = LAUNCHERS_GRACE_SECONDS
            say(notice)

    watch.on_loss = stop.make
    try:
        with heard(STOP_SIGNALS, hear, stop.make):
            yield
    finally:
        watch.on_loss = None


def note_outcome(text: str) -> None:
    """Tells a supervisor that asks whether the run is "running" or "finished"."""
    if path := os.environ.get(OUTCOME_FILE):
        Path(path).write_text(text)


def leave_at_once(code: int) -> None:
    """Ends this process without the interpreter's own end, which takes seconds of CPU."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _started(pid: int) -> str:
    """When a process began, in the system's ticks; empty where it has ended."""
    stat = _stat(pid)
    return stat[19] if stat and stat[0] != "Z" else ""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
