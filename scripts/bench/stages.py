"""Runs a command of a build and says what each of its stages took: wall, CPU of all processes, and the longest path.

The processes are looked at in /proc several times a second (Linux only); a stage ends when the file is written that
ends it. `path_seconds` is the CPU time of the launcher and of the worker with most of it: the wall time on cores that
nobody else uses, but for waiting, and so what to compare on a machine that others use.
"""

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STAGES = {"vocabulary": "vocab.json", "tokens": "tokens/tokens.json", "shards": "manifest.json"}
_TICKS = os.sysconf("SC_CLK_TCK")
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Sample:
    """CPU seconds of every process so far, by pid, at a moment of `time.time()`."""

    moment: float
    cpu: dict[int, float]


def run_stages(command: Sequence[str], output: Path) -> tuple[float, dict[str, dict[str, float]]]:
    """Runs a build into a new folder.

    Returns:
        Wall seconds of the whole, and what each stage took: those of `STAGES`, then the report. The start of Python and
        Beam counts as vocabulary.

    Raises:
        CalledProcessError: The command failed.
    """
    began = time.time()
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = [Sample(began, {})]
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, samples, ended))
    watcher.start()
    code = process.wait()
    finish = time.time()
    ended.set()
    watcher.join()
    if code:
        raise subprocess.CalledProcessError(code, command)
    bounds = {name: Path(output, file).stat().st_mtime for name, file in STAGES.items()}
    return finish - began, _split(samples, process.pid, began, bounds | {"report": finish})


def _watch(session: int, samples: list[Sample], ended: threading.Event) -> None:
    while not ended.wait(_PAUSE_SECONDS):
        # A process that has ended keeps what it had when it was last seen.
        samples.append(Sample(time.time(), samples[-1].cpu | _read_cpu(session)))


def _read_cpu(session: int) -> dict[int, float]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        if int(fields[3]) == session:
            found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def _split(samples: Sequence[Sample], launcher: int, began: float, bounds: dict[str, float]) -> dict[str, Any]:
    stages = {}
    before, start = samples[0].cpu, began
    for name, moment in bounds.items():
        after = min(samples, key=lambda sample: abs(sample.moment - moment)).cpu
        used = {pid: seconds - before.get(pid, 0.0) for pid, seconds in after.items()}
        path = used.pop(launcher, 0.0) + max(used.values(), default=0.0)
        total = sum(after.values()) - sum(before.values())
        seconds = {"seconds": moment - start, "cpu_seconds": total, "path_seconds": path}
        stages[name] = {key: round(value, 2) for key, value in seconds.items()}
        before, start = after, moment
    return stages
