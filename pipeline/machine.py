"""What this process may use of its machine, and how many workers that carries. Stdlib only.

A container has fewer cores and less memory than its machine: its control groups, of version 2, say
how much.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_WORKERS_PER_CORE = 4  # more than one is of use where workers wait for a slow store
_WORKER_BYTES = 600 * 2**20  # the largest process of a build of full buckets (docs/results.md)


class Machine(NamedTuple):
    """Cores that this process may run on, and its free memory, where the system says it."""

    cores: int
    free_bytes: int | None

    def limit(
        self, wanted: int, num_tasks: int, task_bytes: int = _WORKER_BYTES
    ) -> tuple[int, str]:
        """How many of the wanted workers or threads are started; why not more, if so."""
        per_core = f"{_WORKERS_PER_CORE} a core are the most, of {self.cores} core(s)"
        limits = [
            (num_tasks, f"there are {num_tasks:,} task(s)"),
            (_WORKERS_PER_CORE * self.cores, per_core),
        ]
        if self.free_bytes is not None:
            free, each = self.free_bytes / 1e9, task_bytes / 1e9
            room = f"{free:.1f} GB of memory are free, and each may take {each:.1f} GB"
            limits.append((self.free_bytes // max(1, task_bytes), room))
        most, reason = min(limits, key=lambda limit: limit[0])
        chosen = max(1, min(wanted, most))
        return chosen, f"{chosen} instead of {wanted:,}, as {reason}" if chosen < wanted else ""


def this_machine(root: Path = Path("/")) -> Machine:
    """The machine as it is now; proc and sys are in `root`."""
    free = [*_free_of_system(root), *_free_of_groups(root)]
    return Machine(num_cores(root), max(0, min(free)) if free else None)


def num_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use, by its affinity and quotas; a part of one counts as one."""
    has_affinity = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    for folder in _groups(root):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _free_of_groups(root: Path) -> Iterator[int]:
    """The system takes back the memory of a group's files when it needs it."""
    for folder in _groups(root):
        limit, used = _read(folder / "memory.max"), _read(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            lines = map(str.split, _read(folder / "memory.stat").splitlines())
            cached = sum(int(n) for name, n in lines if name in ("inactive_file", "active_file"))
            yield int(limit) - int(used) + cached


def _free_of_system(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[Path]:
    """Folders of this process's control group and of those above it."""
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            folder = top / line.removeprefix("0::").lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
