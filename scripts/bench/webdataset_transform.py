"""Memory and CPU of WriteToWebDataset on an engine, beside webdataset.ShardWriter.

    python -m scripts.bench.webdataset_transform --engine flink --samples 50000 200000 1000000

Each number of samples is written on a newly started engine of this machine (`scripts/engines`
installs it). When it is written, a JSON line is printed, which has these numbers:

- `peak_mb`: the largest resident memory of each process of the engine, by what the process is.
  "worker" is a Python process that runs the transform; "launcher" is the program that has the
  pipeline. With `--engine none` the launcher is the worker too.
- `worker_us_per_sample`: CPU microseconds of all workers together. What 100 samples took is
  subtracted first, so that the start of workers does not count.
- `times_shard_writer`: this, divided by what `webdataset.ShardWriter` took in the same run of this
  program.

A process that exceeds `--limit_mb` is killed, and the line says so.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.measured import print_result
from scripts.checkout import ROOT, exit_on_signals, make_parser
from scripts.clusters.start import NAMES, start_cluster
from tests.ports import free_port

NUM_FIRST = 100
"""Number of samples of the run that shows what the start of workers takes."""
_PROGRAM = Path(__file__).with_name("webdataset_pipeline.py")
_POLL_SECONDS = 0.25
MEGABYTE = 2**20
_TICKS = os.sysconf("SC_CLK_TCK")
_ROLES = {
    "import SdkHarness;": "worker",
    _PROGRAM.name: "launcher",
    "TaskManagerRunner": "task manager",
    "StandaloneSessionClusterEntrypoint": "job manager",
    "CoarseGrainedExecutorBackend": "executor",
    "JobServerDriver": "job server",
    "prism": "prism",
    "local_job_service_main": "job server",
}
"""What a process is, by a word of its command line."""


@dataclass
class Process:
    """What is known about a process.

    Attributes:
        role: What it is (`_ROLES`).
        peak_bytes: The largest resident memory so far.
        cpu_seconds: The CPU time so far, of all its threads.
    """

    role: str
    peak_bytes: int = 0
    cpu_seconds: float = 0.0


@dataclass
class Watch:
    """Reads in a thread what this program's descendants take, until the block is left.

    Attributes:
        limit_bytes: A descendant that takes more memory is killed.
        processes: What is known about each process with a role, by its id.
        killed: A sentence for each process that was killed.
    """

    limit_bytes: int
    processes: dict[int, Process] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    _has_ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread, "the block was entered"
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._has_ended.wait(_POLL_SECONDS):
            self.look()

    def look(self) -> None:
        """Reads what every descendant takes now, and kills those that take too much."""
        for process_id in find_descendants(os.getpid()):
            with contextlib.suppress(OSError):  # it has ended
                self._look_at(process_id)

    def _look_at(self, process_id: int) -> None:
        folder = Path(f"/proc/{process_id}")
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        role = find_role(words)
        if not role:
            return
        process = self.processes.setdefault(process_id, Process(role))
        status = (folder / "status").read_text()
        if "VmHWM:" not in status:
            return  # it has ended, and nobody has waited for it yet
        process.peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        times = (folder / "stat").read_text().rpartition(")")[2].split()
        process.cpu_seconds = (int(times[11]) + int(times[12])) / _TICKS
        if process.peak_bytes > self.limit_bytes:
            os.kill(process_id, signal.SIGKILL)
            self.killed.append(f"{role} at {process.peak_bytes // MEGABYTE:,} MB")

    def peaks(self) -> dict[str, list[int]]:
        """Returns the largest memory of every process in MB, descending, by role."""
        found: dict[str, list[int]] = {}
        for process in self.processes.values():
            found.setdefault(process.role, []).append(process.peak_bytes // MEGABYTE)
        return {role: sorted(found[role], reverse=True) for role in sorted(found)}

    def cpu_seconds(self, role: str) -> float:
        """Returns the CPU seconds of all processes of a role together."""
        return sum(each.cpu_seconds for each in self.processes.values() if each.role == role)


def find_role(words: Sequence[str]) -> str:
    """Returns what a process is (`_ROLES`), or "" if that is not known.

    Args:
        words: Its command line. A shell that starts a program is not the program.
    """
    if Path(words[0]).name in ("bash", "sh"):
        return ""
    found = (role for word, role in _ROLES.items() if any(word in given for given in words))
    return next(found, "")


def find_descendants(process_id: int) -> list[int]:
    """Returns the ids of the children of a process, of their children, and so on."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    ahead = [process_id]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


@contextlib.contextmanager
def started(engine: str, folder: Path) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """Runs an engine, and yields the arguments for Beam and the environment of a launcher."""
    if engine == "none":
        yield ["--runner=FnApiRunner"], {}
        return
    with start_cluster(engine, folder, free_port) as cluster:
        words = shlex.split(cluster.build_command(folder, folder, "files"))
        arguments = [word for word in words[words.index("--") + 1 :] if word.strip()]
        yield [*arguments, "--job_server_timeout=10000000"], cluster.environment


def write_on_engine(settings: argparse.Namespace, num_samples: int) -> dict[str, Any]:
    """Writes samples by the transform on an engine, and returns what its processes took.

    Raises:
        RuntimeError: The pipeline failed, though no process was killed. The message has the end of
            what it and the engine printed.
    """
    prefix = "beambert-webdataset-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=settings.work) as name,
        Watch(settings.limit_mb * MEGABYTE) as watch,
    ):
        folder = Path(name)
        logs = folder / "logs"
        logs.mkdir()
        with started(settings.engine, logs) as (arguments, environment):
            command = [
                sys.executable,
                str(_PROGRAM),
                *("transform", f"{folder}/samples", str(num_samples)),
                *_flags(settings),
                *arguments,
                *settings.beam_arguments,
            ]
            try:
                printed = _run(command, environment, watch)
            except RuntimeError as error:
                raise RuntimeError(f"{error}\n{_read_logs(logs)}") from None
            watch.look()
    role = "launcher" if settings.engine == "none" else "worker"
    cpu_seconds = watch.cpu_seconds(role)
    return {
        "samples": num_samples,
        "seconds": round(json.loads(printed)["seconds"], 1) if printed else None,
        "worker_cpu_seconds": round(cpu_seconds, 2),
        "peak_mb": watch.peaks(),
        **({"killed": watch.killed} if watch.killed else {}),
    }


def _read_logs(folder: Path) -> str:
    """Returns the end of each log of an engine."""
    logs = sorted(folder.glob("*.log"))
    return "\n".join(f"--- {log.name}:\n{log.read_text(errors='replace')[-4000:]}" for log in logs)


def write_by_shard_writer(settings: argparse.Namespace) -> float:
    """Returns the CPU microseconds that `webdataset.ShardWriter` takes for a sample."""
    num_samples: int = settings.reference_samples
    with tempfile.TemporaryDirectory(dir=settings.work) as folder:
        command = [sys.executable, str(_PROGRAM), "ShardWriter", folder, str(num_samples)]
        found = json.loads(_run([*command, *_flags(settings)], {}, None))
    return float(found["cpu_seconds"]) / num_samples * 1e6


def _flags(settings: argparse.Namespace) -> list[str]:
    """Returns the flags of the measured program."""
    flags = [f"--sample_bytes={settings.sample_bytes}", f"--max_bytes={settings.max_bytes}"]
    return [*flags, *([f"--num_shards={settings.num_shards}"] if settings.num_shards else [])]


def _run(command: Sequence[str], environment: Mapping[str, str], watch: Watch | None) -> str:
    """Runs a program, and returns its last line; "" if it failed because a process was killed."""
    own = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"} | dict(environment)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, env=own, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    printed, _ = process.communicate(timeout=5)
                    break
                if watch and watch.killed:
                    process.kill()
        finally:
            process.kill()
            process.wait()
        if process.returncode and watch and watch.killed:
            return ""
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{errors.read()[-4000:]}")
    return printed.splitlines()[-1]


def main() -> int:
    """Reads the command line, and measures."""
    exit_on_signals()
    parser = make_parser(__doc__)
    engines = ["none", *(name for name in NAMES if name != "dask")]  # Dask cannot run the transform
    parser.add_argument("--engine", default="none", choices=engines)
    parser.add_argument("--samples", type=int, nargs="+", default=[50_000, 200_000])
    parser.add_argument("--sample_bytes", type=int, default=200, help="size of the only entry")
    parser.add_argument("--max_bytes", type=int, default=2**22, help="largest size of a shard")
    parser.add_argument("--num_shards", type=int, help="give it to shuffle once (docs/library.md)")
    parser.add_argument("--reference_samples", type=int, default=50_000, help="for ShardWriter")
    parser.add_argument("--limit_mb", type=int, default=6000, help="kills what takes more")
    parser.add_argument("--work", type=Path, help="folder for temporary files")
    parser.add_argument("beam_arguments", nargs="*", help="after --, for Beam")
    settings = parser.parse_args()
    try:
        measure(settings)
    except RuntimeError as error:
        raise SystemExit(f"webdataset_transform: {error}") from error
    return 0


def measure(settings: argparse.Namespace) -> None:
    """Measures every number of samples, and prints a JSON line for each.

    Raises:
        RuntimeError: The engine is not installed, or a pipeline failed.
    """
    reference = write_by_shard_writer(settings)
    start = write_on_engine(settings, NUM_FIRST)
    config = {name: value for name, value in vars(settings).items() if name != "work"}
    for num_samples in settings.samples:
        run = write_on_engine(settings, num_samples)
        cpu_seconds = run["worker_cpu_seconds"] - start["worker_cpu_seconds"]
        per_sample = cpu_seconds / (num_samples - NUM_FIRST) * 1e6
        found = {
            **run,
            "worker_us_per_sample": round(per_sample, 1),
            "shard_writer_us_per_sample": round(reference, 1),
            "times_shard_writer": round(per_sample / reference, 2),
            "start": start,
        }
        print_result("webdataset_transform", config, ["apache-beam", "webdataset"], **found)
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
