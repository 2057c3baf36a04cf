"""Tells a rank to stop: after a signal, or because its launcher has ended.

The `deepspeed` command starts `deepspeed.launcher.launch`, which starts the ranks. If a signal ends
the command, neither the launcher nor the ranks hear of it. So every rank watches both processes, or
torchrun's, in Linux's /proc, and leaves when one of them has ended.
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
"""Exit code of a run that was told to stop and saved. After Ctrl-C it is 128 + SIGINT."""

OUTCOME_FILE = "BEAMBERT_OUTCOME_FILE"
"""The variable that names the file in which a supervisor reads the outcome of a run."""

LAUNCHER_PROGRAMS = {"deepspeed", "ds", "torchrun"}
LAUNCHER_MODULES = ("deepspeed.launcher.", "torch.distributed.run", "torch.distributed.launch")
POLL_SECONDS = 0.5
"""Seconds between two looks at the launchers."""

GRACE_SECONDS = 8.0
"""Seconds in which a rank may save after its launcher has ended."""

LAUNCHERS_GRACE_SECONDS = 30.0
"""Seconds that launchers give their ranks after Ctrl-C before they kill them."""


class LauncherWatch:
    """Ends this process some time after its launcher has ended.

    Attributes:
        on_loss: A function that is called once, when the launcher has ended, so that the process
            can save. If it is None, the process ends at once.
        grace_seconds: Seconds between the call of `on_loss` and the end of the process.
        has_launcher: Whether this process has a launcher.
        has_deepspeed: Whether the launcher is DeepSpeed's.
    """

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Starts to watch the launchers among this process's parents, if there are any."""
        self.on_loss: Callable[[], None] | None = None
        self.grace_seconds = grace_seconds
        self._launchers = find_launchers()
        self.has_launcher = bool(self._launchers)
        commands = [" ".join(_arguments(pid)[:3]) for pid in self._launchers]
        self.has_deepspeed = any("deepspeed" in command for command in commands)
        if self.has_launcher:
            threading.Thread(target=self._watch, name="launcher watch", daemon=True).start()

    def _watch(self) -> None:
        """Waits for the end of a launcher, and ends this process; runs in a thread."""
        while all(_started(pid) == started for pid, started in self._launchers.items()):
            time.sleep(POLL_SECONDS)
        if self.on_loss is not None:
            self.on_loss()
            time.sleep(self.grace_seconds)
        os._exit(STOPPED)


def find_launchers() -> dict[int, str]:
    """Returns the processes that launched this one: for each process id, when that process began.

    The parent of this process is examined first, then its parent, and so on, up to the first
    process that is no launcher. The times are those of `_started`; with the id they tell a process
    from a later one that has the same id. The result is empty if this process has no launcher.
    """
    launchers: dict[int, str] = {}
    pid = os.getppid()
    while (started := _started(pid)) and is_launcher(_arguments(pid)):
        launchers[pid] = started
        pid = int(_stat(pid)[1])
    return launchers


def is_launcher(arguments: list[str]) -> bool:
    """Returns whether a command line starts ranks, such as `python -m torch.distributed.run`."""
    for index, argument in enumerate(arguments[:5]):
        if argument == "-m":
            return "".join(arguments[index + 1 : index + 2]).startswith(LAUNCHER_MODULES)
        if not argument.startswith("-") and Path(argument).name in LAUNCHER_PROGRAMS:
            return True
    return False


class StopRequest:
    """Notes whether this rank was told to stop.

    Attributes:
        is_made: Whether this rank was told to stop.
        number: SIGINT if the rank was told to stop by Ctrl-C, else SIGTERM. The exit code of the
            run is 128 + `number`. Before any request it is SIGTERM, with which a rank exits that
            stops because another rank was told to.
    """

    def __init__(self) -> None:
        self.is_made = False
        self.number = int(signal.SIGTERM)

    def make(self, number: int = signal.SIGTERM, _frame: FrameType | None = None) -> None:
        """Tells this rank to stop; `number` is the signal that asks for it.

        It can be the handler of a signal, which Python calls with the number and a stack frame.
        """
        self.is_made = True
        if number == signal.SIGINT:
            self.number = number


@contextlib.contextmanager
def stops_requested(
    watch: LauncherWatch, stop: StopRequest, say: Callable[[str], None], notice: str
) -> Iterator[None]:
    """Turns stop signals and the end of the launcher into a request, inside a `with` block.

    The first Ctrl-C prints the notice. It also ends the `deepspeed` command at once. So from then
    on this rank has LAUNCHERS_GRACE_SECONDS to save, although its launcher is gone. A second Ctrl-C
    ends the process at once, even while the main thread waits for another rank.

    Args:
        watch: Watches the launcher.
        stop: Takes the request.
        say: Prints a line.
        notice: The line to print after Ctrl-C.
    """
    interrupts: list[int] = []

    def hear(number: int) -> None:
        # torchrun sends its ranks SIGTERM for a second Ctrl-C. DeepSpeed's launcher sends SIGTERM
        # after the first one already, so there it does not count as the second.
        is_from_torchrun = (
            number == signal.SIGTERM and watch.has_launcher and not watch.has_deepspeed
        )
        if interrupts and (number == signal.SIGINT or is_from_torchrun):
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
    """Writes a word about the run into the file that the variable BEAMBERT_OUTCOME_FILE names.

    A program that supervises the run sets the variable and reads the file. If it is not set,
    nothing is written.

    Args:
        text: "running" or "finished".
    """
    path = os.environ.get(OUTCOME_FILE)
    if path:
        Path(path).write_text(text)


def leave_at_once(code: int) -> None:
    """Ends this process without the interpreter's cleanup, which takes seconds of CPU time."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _started(pid: int) -> str:
    """Returns when a process began, in the system's clock ticks; empty if it has ended."""
    stat = _stat(pid)
    return stat[19] if stat and stat[0] != "Z" else ""


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _arguments(pid: int) -> list[str]:
    """Returns the command line of a process; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []
