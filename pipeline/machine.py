"""What this process may use of its machine, and how many workers that carries. Stdlib only.

A container has fewer cores and less memory than its machine: its control groups say how much, of
version 1 or 2.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORKERS_PER_CORE = 4  # more than one is of use where workers wait for a slow store
WORKER_BYTES = (
    600 * 2**20
)  # the largest process of a build whose buckets are full (docs/performance.md)


@dataclass(frozen=True)
class Machine:
    """Cores and free memory of this process.

    Attributes:
        cores: That it may run on, at least 1; a part of one counts as one.
        free_bytes: Of memory; None where the system does not say.
    """

    cores: int
    free_bytes: int | None

    def limit(self, wanted: int, num_tasks: int, task_bytes: int = WORKER_BYTES) -> tuple[int, str]:
        """How many of the wanted workers or threads are started, and why not more; nothing where all are.

        Args:
            wanted: By the user.
            num_tasks: There are.
            task_bytes: One may take.
        """
        limits = [
            (num_tasks, f"there are {num_tasks:,} task(s)"),
            (
                WORKERS_PER_CORE * self.cores,
                f"{WORKERS_PER_CORE} a core are the most, of {self.cores} core(s)",
            ),
        ]
        if self.free_bytes is not None:
            room = f"{self.free_bytes / 1e9:.1f} GB of memory are free, and each may take {task_bytes / 1e9:.1f} GB"
            limits.append((self.free_bytes // max(1, task_bytes), room))
        most, reason = min(limits, key=lambda limit: limit[0])
        chosen = max(1, min(wanted, most))
        return chosen, f"{chosen} instead of {wanted:,}, as {reason}" if chosen < wanted else ""


def this_machine(root: Path = Path("/")) -> Machine:
    """The machine as it is now.

    Args:
        root: Where proc and sys are.
    """
    free = [each for each in (_free_of_system(root), *_free_of_groups(root)) if each is not None]
    return Machine(num_cores(root), max(0, min(free)) if free else None)


def num_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: by its affinity and the quotas of its control groups."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min([allowed, *(math.ceil(each) for each in _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    for folder in _groups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _free_of_groups(root: Path) -> Iterator[int]:
    for folder in _groups(root, "memory"):
        for limit_name, used_name in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
            limit, used = (
                _read(folder / f"memory.{limit_name}"),
                _read(folder / f"memory.{used_name}"),
            )
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + _cached(folder)


def _cached(folder: Path) -> int:
    """Bytes of files among a group's memory, which the system takes back when it needs them."""
    rows = dict(
        line.split()
        for line in _read(folder / "memory.stat").splitlines()
        if len(line.split()) == 2
    )
    return int(rows.get("inactive_file", 0)) + int(rows.get("active_file", 0))


def _free_of_system(root: Path) -> int | None:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of those above it; of version 1 those of a controller."""
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if number != "0" and controller not in names.split(","):
            continue
        top = mounted if number == "0" else mounted / controller
        folder = top / path.lstrip("/")
        yield folder
        while folder != top:
            folder = folder.parent
            yield folder


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
