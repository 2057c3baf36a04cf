"""Builds one corpus on real engines, disturbed or not; compares root hashes with a local build's.

    scripts/engines
    python -m scripts.soak.engines --engines flink prism --documents 4000 --output FILE.json

The vocabulary is learned, with two lengths and three passes, in both exchanges. Disturbances come
while the first shards are written: Ctrl-C at the launcher, and the loss of a task manager, executor
or worker node where there are two. After each the same command runs until the build is finished,
three times at most. Exit code 1 where one is not, or gives another root hash. `--documents` makes
it as large as the machine can hold.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from scripts.checkout import ROOT, describe_soak, exit_on_signals, make_parser, write_results
from scripts.clusters.install import DASK, FLINK, JOB_SERVER_BEAM, PRISM, SPARK
from scripts.clusters.start import NAMES, Cluster, start_cluster
from scripts.soak.kill_build import read_root_hash
from scripts.soak.kills import write_corpus
from tests.ports import free_port

FLAGS = ("--vocab_size", "100", "--passes", "3", "--seq_lens", "64", "128", "--num_buckets", "8")
SECONDS = 3600.0
_RUNS = 3


@dataclass(frozen=True)
class Outcome:
    """A build on an engine; "late" stands before a disturbance that came after its end."""

    engine: str
    exchange: str
    disturbance: str
    runs: int
    seconds: float
    is_equal: bool
    said: str = ""


def main() -> int:
    """Runs all of it and prints a JSON line for each build."""
    exit_on_signals()
    parser = make_parser(__doc__)
    parser.add_argument("--engines", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--documents", type=int, default=4000, help="of some 1.2 kB each")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    own = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="beambert-engines-soak-") as name:
        folder = Path(name)
        write_corpus(folder, own.documents)
        local = build_locally(folder)
        for engine in own.engines:
            (folder / engine).mkdir()
            with start_cluster(engine, folder / engine, free_port) as cluster:
                for exchange in ("files", "shuffle"):
                    for disturbance in disturbances(cluster, exchange):
                        outcomes.append(build(cluster, folder, exchange, disturbance, local))
                        print(json.dumps(asdict(outcomes[-1])), flush=True)
    failed = [each for each in outcomes if not each.is_equal]
    result = {
        **describe_soak("engines"),
        "beam": version("apache-beam"),
        "engines": {each: _VERSIONS[each] for each in own.engines},
        "documents": own.documents,
        "root_hash": local,
        "builds": len(outcomes),
        "failed": len(failed),
    }
    print(json.dumps(result))
    write_results(own.output, result, "outcomes", [asdict(each) for each in outcomes])
    return 1 if failed else 0


_VERSIONS = {
    "flink": f"Flink {FLINK}, job server of Beam {JOB_SERVER_BEAM}",
    "spark": f"Spark {SPARK}, job server of Beam {JOB_SERVER_BEAM}",
    "prism": f"Prism {PRISM}",
    "beam": "Beam's job server in Python",
    "dask": f"Dask {DASK}",
}


def disturbances(cluster: Cluster, exchange: str) -> tuple[str, ...]:
    """Returns what happens in the middle of builds, in turn.

    A lost node stays lost, so it is the last.
    """
    return (
        "",
        "Ctrl-C",
        *(["node lost"] if len(cluster.node_ids) > 1 and exchange == "shuffle" else []),
    )


def build_locally(folder: Path) -> str:
    """Builds the corpus in processes of this machine, and returns the root hash."""
    words = f"--config configs/data/bert.yaml --input {folder}/corpus --output {folder}/local"
    command = [sys.executable, "-m", "pipeline", "build", *words.split(), *FLAGS, "--workers", "2"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return read_root_hash(folder / "local")


def build(
    cluster: Cluster, folder: Path, exchange: str, disturbance: str, expected: str
) -> Outcome:
    """Builds on an engine until the dataset is there."""
    output = folder / "-".join((cluster.name, exchange, disturbance.replace(" ", "") or "plain"))
    command = cluster.build_command(folder / "corpus", output, exchange, *FLAGS)
    began = time.monotonic()
    log = output.with_suffix(".log")
    code = 1
    runs = 0
    happened = disturbance
    while code and runs < _RUNS:
        runs += 1
        process = start(command, cluster.environment, folder, log)
        try:
            if disturbance and runs == 1:
                happened = disturb(process, cluster, output, disturbance)
            code = process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if disturbance == "Ctrl-C" and not code and runs == 1:
        happened = "late: Ctrl-C"
    found = "" if code else read_root_hash(output)
    said = log.read_text(errors="replace")[-2000:] if code else ""
    seconds = round(time.monotonic() - began, 1)
    return Outcome(cluster.name, exchange, happened, runs, seconds, found == expected, said)


def start(
    command: str, environment: Mapping[str, str], folder: Path, log: Path
) -> "subprocess.Popen[bytes]":
    """Starts a launcher in a session of its own."""
    with log.open("wb") as file:
        return subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=os.environ | dict(environment),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def disturb(
    process: "subprocess.Popen[bytes]", cluster: Cluster, output: Path, disturbance: str
) -> str:
    """Waits for the first finished shard, then does it; says what was done."""
    while process.poll() is None and not list(output.glob("_tasks/**/shard-*.json")):
        time.sleep(0.02)
    if process.poll() is not None:
        return f"late: {disturbance}"
    if disturbance == "Ctrl-C":
        os.kill(process.pid, signal.SIGINT)
    else:
        os.killpg(cluster.node_ids[0], signal.SIGKILL)
    return disturbance


if __name__ == "__main__":
    sys.exit(main())
