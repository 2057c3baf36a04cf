"""Runs a build and measures each of its stages: wall time, CPU of all processes, longest path.

The processes are looked up in /proc several times a second (Linux only). A stage ends when the file
that ends it is written. `path_seconds` is the CPU time of the launcher plus that of the busiest
worker. On cores that nobody else uses it is the wall time without waiting, so it can be compared on
a machine that others use. The launcher's own children are not counted in it: they are shells, which
only wait.
"""

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STAGES = {"vocabulary": "vocab.json", "tokens": "tokens/tokens.json", "shards": "manifest.json"}
_TICKS = os.sysconf("SC_CLK_TCK")
_PAUSE_SECONDS = 0.05
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@dataclass(frozen=True)
class Stages:
    """What a build took.

    Attributes:
        seconds: The wall time.
        peak_bytes: The most memory that one process had.
        stages: For each of `STAGES` and for "report": "seconds", "cpu_seconds" and "path_seconds".
            The start of Python and Beam counts as vocabulary.
    """

    seconds: float
    peak_bytes: int
    stages: dict[str, dict[str, float]]


@dataclass(frozen=True)
class _Sample:
    """One look at the processes of a build.

    Attributes:
        moment: The time, as `time.time()` returns it.
        cpu: The CPU seconds that each process has used so far, by its id.
        peak_bytes: The most memory that one process has had so far.
    """

    moment: float
    cpu: dict[int, float]
    peak_bytes: int = 0


def run_stages(command: Sequence[str], output: Path) -> Stages:
    """Runs a command that builds into a new folder.

    Raises:
        subprocess.CalledProcessError: The command failed.
    """
    began = time.time()
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    samples = [_Sample(began, {})]
    ended = threading.Event()
    children: set[int] = set()
    watcher = threading.Thread(target=_watch, args=(process.pid, samples, children, ended))
    watcher.start()
    code = process.wait()
    finish = time.time()
    ended.set()
    watcher.join()
    if code:
        raise subprocess.CalledProcessError(code, command)
    bounds = {name: Path(output, file).stat().st_mtime for name, file in STAGES.items()}
    stages = _split(samples, process.pid, children, began, bounds | {"report": finish})
    return Stages(finish - began, samples[-1].peak_bytes, stages)


def _watch(
    session: int, samples: list[_Sample], children: set[int], ended: threading.Event
) -> None:
    while not ended.wait(_PAUSE_SECONDS):
        # A process that has ended keeps what it had when it was last seen.
        moment = time.time()
        before = samples[-1]
        cpu = dict(before.cpu)
        peak_bytes = before.peak_bytes
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, LookupError):  # ended meanwhile
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    children.update([int(folder.name)] if int(fields[1]) == session else [])
                    cpu[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
                    peak_bytes = max(
                        peak_bytes, 1024 * int(_PEAK.findall((folder / "status").read_text())[0])
                    )
        samples.append(_Sample(moment, cpu, peak_bytes))


def _split(
    samples: Sequence[_Sample],
    launcher: int,
    children: set[int],
    began: float,
    bounds: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    stages = {}
    before = samples[0].cpu
    start = began
    for name, moment in bounds.items():
        after = min(samples, key=lambda sample: abs(sample.moment - moment)).cpu
        used = {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}
        total = sum(used.values())
        workers = (
            seconds for pid, seconds in used.items() if pid != launcher and pid not in children
        )
        path = used.get(launcher, 0.0) + max(workers, default=0.0)
        seconds = {"seconds": moment - start, "cpu_seconds": total, "path_seconds": path}
        stages[name] = {key: round(value, 2) for key, value in seconds.items()}
        before = after
        start = moment
    return stages
