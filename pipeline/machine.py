"""Finds how many cores and how much memory this process may use, and how many workers that allows.

A container may have fewer cores and less memory than its machine. Its control groups (cgroup v2)
say how much. Only the standard library is imported here.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_WORKERS_PER_CORE = 4  # more workers than cores help if they wait for a slow store
_WORKER_BYTES = 700 * 2**20
"""The memory in bytes that a worker is assumed to need.

The largest process in a build of full buckets took 647 MB (docs/results.md), which is 617 MiB. The
rest is a margin for other text.
"""


class Machine(NamedTuple):
    """The cores and the memory that this process may use.

    Attributes:
        cores: Number of cores.
        free_bytes: Free memory in bytes; None if the system does not say it.
    """

    cores: int
    free_bytes: int | None

    def limit(
        self, wanted: int, num_tasks: int, task_bytes: int = _WORKER_BYTES
    ) -> tuple[int, str]:
        """Chooses how many workers or threads to start.

        It is the number that is wanted, but not more than there are tasks, than four per core, and
        than the free memory holds. It is at least 1.

        Args:
            wanted: The number of workers or threads that the user asked for.
            num_tasks: The number of tasks that they share.
            task_bytes: The memory that one worker or thread may take, in bytes.

        Returns:
            The number to start, and the reason as text, such as "3 instead of 8, as there are 3
            task(s)". The text is empty if the number is the wanted one.
        """
        per_core = f"{_WORKERS_PER_CORE} a core are the most, of {self.cores} core(s)"
        limits = [
            (num_tasks, f"there are {num_tasks:,} task(s)"),
            (_WORKERS_PER_CORE * self.cores, per_core),
        ]
        if self.free_bytes is not None:
            free_gb = self.free_bytes / 1e9
            task_gb = task_bytes / 1e9
            room = f"{free_gb:.1f} GB of memory are free, and each may take {task_gb:.1f} GB"
            limits.append((self.free_bytes // max(1, task_bytes), room))
        most, reason = min(limits, key=lambda limit: limit[0])
        chosen = max(1, min(wanted, most))
        return chosen, f"{chosen} instead of {wanted:,}, as {reason}" if chosen < wanted else ""


def this_machine(root: Path = Path("/")) -> Machine:
    """Returns the cores that this process may use, and the memory that is free for it now.

    Args:
        root: The folder that holds `proc` and `sys`; tests give another one.
    """
    free = [*_free_of_system(root), *_free_of_groups(root)]
    return Machine(num_cores(root), max(0, min(free)) if free else None)


def num_cores(root: Path = Path("/")) -> int:
    """Returns the number of cores that this process may use, by its CPU affinity and quotas.

    A quota that is not a whole number is rounded up: 1.5 cores count as 2.

    Args:
        root: The folder that holds `proc` and `sys`; tests give another one.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yields the number of cores, such as 1.5, that each control group of this process allows.

    A group that sets no limit is left out.
    """
    for folder in _groups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _free_of_groups(root: Path) -> Iterator[int]:
    """Yields the free memory in bytes of each control group that has a limit.

    Cached files count as free, because the system takes their memory back when it needs it.
    """
    for folder in _groups(root):
        limit = _read(folder / "memory.max")
        used = _read(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            lines = map(str.split, _read(folder / "memory.stat").splitlines())
            cached = sum(int(n) for name, n in lines if name in ("inactive_file", "active_file"))
            yield int(limit) - int(used) + cached


def _free_of_system(root: Path) -> Iterator[int]:
    """Yields the free memory of the whole machine in bytes, as /proc/meminfo says it.

    It yields nothing on a system without this file, such as macOS.

    Args:
        root: The folder that holds `proc`.
    """
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[Path]:
    """Yields the folder of this process's control group, and those of the groups that contain it.

    It yields nothing on a system without control groups of version 2.
    """
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            folder = top / line.removeprefix("0::").lstrip("/")
            yield from (path for path in (folder, *folder.parents) if path.is_relative_to(top))


def _read(path: Path) -> str:
    """Returns the text of a file, or an empty text if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
