"""CPU-seconds and time of a build here and on a real engine, with one slot and two: a JSON line.

    scripts/engines
    python -m scripts.bench.engines --input "wiki/*.zst" --copies 12 --vocab vocab.txt --engine
    flink

The corpus is written anew as often as `--copies` says, as scripts/bench/build.py does. The
CPU-seconds of an engine's build are those of every process of the engine while it ran, by program,
and of the launcher. The engine runs as scripts/clusters/start.py starts it: on Flink two task
managers of 1.5 GB.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from scripts.bench.build import measure_build, write_copies
from scripts.bench.measured import print_result
from scripts.checkout import make_parser
from scripts.clusters.start import NAMES, Cluster, start_cluster
from scripts.soak.kill_build import read_root_hash
from tests.ports import free_port

_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS = {
    "task managers": "TaskManager|CoarseGrainedExecutor|deploy.worker.Worker",
    "job server": "JobServerDriver|job-server|local_job_service",
    "masters": "StandaloneSession|deploy.master.Master",
    "engine": "prism|dask",
    "workers": "worker_pool|sdk_worker",
}


class CpuWatch(threading.Thread):
    """Looks at an engine's processes twice a second: what ends takes its own count with it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._first: dict[tuple[str, str], float] = {}
        self._last: dict[tuple[str, str], tuple[str, float]] = {}
        self._stop_now = threading.Event()
        self._look(is_first=True)

    def run(self) -> None:
        """Looks until it is stopped."""
        while not self._stop_now.wait(0.5):
            self._look()

    def stop(self) -> dict[str, list[float]]:
        """CPU-seconds of each process since the watch was made, the busiest first, by kind."""
        self._stop_now.set()
        self.join()
        self._look()
        found: dict[str, list[float]] = {}
        for process, (kind, seconds) in self._last.items():
            if (used := seconds - self._first.get(process, 0.0)) >= 0.1:
                found.setdefault(kind, []).append(round(used, 1))
        return {kind: sorted(each, reverse=True) for kind, each in found.items()}

    def _look(self, *, is_first: bool = False) -> None:
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (
                    (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                kind = next(
                    (kind for kind, pattern in _KINDS.items() if re.search(pattern, command)), ""
                )
                if kind and "-m pipeline" not in command and "scripts.bench" not in command:
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    process, seconds = (
                        (path.name, fields[19]),
                        sum(map(int, fields[11:13])) / _TICKS,
                    )
                    self._last[process] = kind, seconds
                    if is_first:
                        self._first[process] = seconds


def measure_engine(
    cluster: Cluster, source: str, output: Path, exchange: str, slots: int, flags: list[str]
) -> Any:
    """One build on the engine."""
    command = cluster.build_command(Path(source), output, exchange, *flags)
    if slots == 1:
        command = command.replace("--parallelism=2", "--parallelism=1")
    environment, printed = os.environ | dict(cluster.environment), output.with_suffix(".log")
    watch, used, began = CpuWatch(), os.times(), time.monotonic()
    watch.start()
    with printed.open("wb") as log:
        ended = subprocess.run(
            ["bash", "-c", f"exec {command}"], env=environment, stdout=log, stderr=log, check=False
        )
    seconds, after, cpu = time.monotonic() - began, os.times(), watch.stop()
    if ended.returncode:
        said = printed.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{command} ended with {ended.returncode}:\n{said}")
    launcher = (
        after.children_user + after.children_system - used.children_user - used.children_system
    )
    root_hash = read_root_hash(output)
    shutil.rmtree(output)
    return {
        "exchange": exchange,
        "slots": slots,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(map(sum, cpu.values())) + launcher, 1),
        "cpu_by_process": {"launcher": [round(launcher, 1)]} | cpu,
        "root_hash": root_hash,
    }


def main() -> int:
    """Builds here with one worker and two, then on the engine."""
    parser = make_parser(__doc__)
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--copies", type=int, default=12)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--engine", choices=list(NAMES), default="flink")
    parser.add_argument("--exchanges", nargs="+", default=["files"], choices=["files", "shuffle"])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="of the builds here")
    parser.add_argument("--slots", type=int, nargs="+", default=[2, 1], choices=[1, 2])
    config = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-bench-engines-") as name:
        folder = Path(name)
        source = write_copies(config.input, config.copies, folder)
        flags = ["--vocab", config.vocab, "--passes", str(config.passes), "--seq_lens", "128"]
        local = [
            measure_build(["--input", source, *flags, "--workers", str(each)])
            for each in config.workers
        ]
        print(json.dumps(local), file=sys.stderr, flush=True)
        (folder / "engine").mkdir()
        found = []
        with start_cluster(config.engine, folder / "engine", free_port) as cluster:
            for exchange in config.exchanges:
                for slots in config.slots:
                    output = folder / f"{exchange}-{slots}"
                    found.append(measure_engine(cluster, source, output, exchange, slots, flags))
                    print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    print_result(
        "engines", vars(config), ("apache-beam", "pyarrow", "numpy"), local=local, engine=found
    )
    return 0 if len({each["root_hash"] for each in [*local, *found]}) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
