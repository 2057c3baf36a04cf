"""Starts each engine by the commands of docs/runners.md, and says how a build runs on it.

Every process of an engine listens at ports that the caller chooses, keeps its files below one
folder, and ends with the block. Workers run this checkout's wheel in an environment of their own.
"""

import contextlib
import json
import os
import shlex
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scripts.checkout import ROOT
from scripts.clusters.install import SPARK_DRIVER, engines, find_code, flink_home, spark_home
from scripts.clusters.page import fill_in, read_block
from scripts.clusters.programs import listens, running, says

Ports = Callable[[], int]
NAMES = {
    "flink": ("flink", "flink-job-server", "workers"),
    "spark": ("spark", "spark-job-server", "workers"),
    "prism": ("prism", "workers"),
    "beam": ("workers",),
    "dask": ("dask", "workers"),
}
"""What must be installed for each. "workers" also builds the wheel of this checkout."""
_SMALL = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"
}  # these programs live for minutes: compiling better costs more


@dataclass(frozen=True)
class Cluster:
    """An engine that runs, and its section of docs/runners.md."""

    name: str
    section: str
    values: Mapping[str, object]  # of this machine, by what the printed build command names
    folder: Path
    python: Path = field(default_factory=lambda: Path(sys.executable))
    environment: Mapping[str, str] = field(default_factory=dict)
    node_ids: tuple[int, ...] = ()

    def build_command(self, source: Path, output: Path, exchange: str, *flags: str) -> str:
        """Returns the page's build command for a shell, with other places and more flags."""
        printed = read_block(self.section, "-m pipeline build")
        (given,) = {"'s3://bucket/text/*.jsonl'", "'my-text/*.jsonl'"} & set(printed.split())
        written = "s3://bucket/data" if "s3:" in given else "data"
        values = {
            "python -m": f"{self.python} -m",
            f"--input {given}": f"--input '{source}'",
            f"--output {written}": f"--output {output}",
            "--exchange files": shlex.join(["--exchange", exchange, *flags]),
        }
        return fill_in(printed, {**values, **self.values})


@contextlib.contextmanager
def start_cluster(
    name: str, folder: Path, free_port: Ports, hooks: Path | None = None
) -> Iterator[Cluster]:
    """Runs an engine until the block is left.

    Args:
        name: The engine: "flink", "spark", "prism", "beam" or "dask".
        folder: An empty folder for logs and settings.
        free_port: Returns a port that nothing listens on.
        hooks: A folder with a sitecustomize.py that workers import; None if there is none.

    Raises:
        RuntimeError: Something is not installed, or a process of the engine did not start; the
            message has the end of its log.
    """
    missing = [part for part in NAMES[name] if not engines()[part].is_installed]
    if missing:
        parts = " ".join(missing)
        raise RuntimeError(f"{name} needs {parts}, not installed yet; run scripts/engines {parts}")
    paths = [str(path) for path in (hooks, find_code()) if path]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
    starters = {"flink": _flink, "spark": _spark, "prism": _prism, "beam": _beam, "dask": _dask}
    with contextlib.ExitStack() as stack:
        yield starters[name](stack, folder, free_port, variables)


def _flink(
    stack: contextlib.ExitStack, folder: Path, free_port: Ports, variables: Mapping[str, str]
) -> Cluster:
    rest = free_port()
    job_port = free_port()
    pool = _start_pool(stack, folder, free_port(), variables)
    home = flink_home(engines()["flink"].folder)
    environment = _flink_settings(home, folder, rest, free_port()) | _SMALL
    printed = read_block("Flink", "bin/taskmanager.sh")
    own = {"bin/": f"{home}/bin/", " start ": " start-foreground "}
    manager, worker = (fill_in(line, own) for line in printed.splitlines())
    stack.enter_context(running("jobmanager", manager, folder, listens(rest), environment))
    nodes = [
        stack.enter_context(
            running(
                f"taskmanager-{number}", worker, folder, _task_managers(rest, number), environment
            )
        )
        for number in (1, 2)
    ]
    jar = engines()["flink-job-server"].folder / "job-server-1.jar"
    values = {
        "beam-runners-flink-1.19-job-server-2.62.0.jar": jar,
        "HOST:8081": f"127.0.0.1:{rest}",
    }
    _start_job_server(stack, "Flink", values, folder, job_port, free_port(), _SMALL)
    return Cluster("flink", "Flink", _portable(8099, job_port, pool), folder, node_ids=tuple(nodes))


def _flink_settings(home: Path, folder: Path, rest: int, rpc: int) -> dict[str, str]:
    """Writes a config.yaml for Flink, and returns the environment variables that lead to it.

    The file has Flink's own settings. Those of the page replace them, and are replaced by local
    addresses, folders and a small memory.
    """
    found = _flatten(yaml.safe_load((home / "conf/config.yaml").read_text()))
    found |= _flatten(yaml.safe_load(read_block("Flink", "taskmanager.numberOfTaskSlots")))
    local = ("jobmanager.rpc.address", "jobmanager.bind-host", "rest.address", "rest.bind-address")
    found |= dict.fromkeys((*local, "taskmanager.host", "taskmanager.bind-host"), "127.0.0.1")
    found |= {
        "rest.port": rest,
        "rest.bind-port": rest,
        "jobmanager.rpc.port": rpc,
        "io.tmp.dirs": str(folder / "tmp"),
    }
    # Room for messages that wait, off the heap and on it, as the page says.
    found |= {
        "jobmanager.memory.process.size": "1100m",
        "taskmanager.memory.process.size": "4700m",
        "taskmanager.memory.managed.size": "420m",
    }
    shutil.copytree(home / "conf", folder / "conf")
    (folder / "tmp").mkdir()
    (folder / "conf/config.yaml").write_text(
        "".join(f"{name}: {json.dumps(each)}\n" for name, each in found.items())
    )
    return {
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(folder / "conf"),
        "FLINK_LOG_DIR": str(folder),
        "FLINK_PID_DIR": str(folder),
    }


def _flatten(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= (
            _flatten(value, f"{above}{name}.")
            if isinstance(value, dict)
            else {f"{above}{name}": value}
        )
    return found


def _task_managers(rest: int, number: int) -> Callable[[str], bool]:
    """Returns a function that says whether Flink knows at least `number` task managers."""

    def are_there(_: str) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{rest}/taskmanagers") as reply,
        ):
            return len(json.load(reply)["taskmanagers"]) >= number
        return False

    return are_there


def _spark(
    stack: contextlib.ExitStack, folder: Path, free_port: Ports, variables: Mapping[str, str]
) -> Cluster:
    master_port = free_port()
    job_port = free_port()
    pool = _start_pool(stack, folder, free_port(), variables)
    home = spark_home(engines()["spark"].folder)
    environment = _SMALL | {
        "PATH": f"{home}/bin:{os.environ['PATH']}",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "tmp"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_WEBUI_PORT": str(free_port()),
    }
    master = fill_in(read_block("Spark", "deploy.master"), {"--port 7077": f"--port {master_port}"})
    stack.enter_context(running("master", master, folder, says("New state: ALIVE"), environment))
    url = {
        "HOST:7077": f"127.0.0.1:{master_port}",
        "--cores": "--host 127.0.0.1 --webui-port 0 --cores",
    }
    worker = fill_in(read_block("Spark", "deploy.worker"), url)
    ready = says("Successfully registered with master")
    nodes = [
        stack.enter_context(running(f"worker-{n}", worker, folder, ready, environment))
        for n in (1, 2)
    ]
    classes = f"{engines()['spark-job-server'].folder}/job-server-1.jar:{home}/jars/*"
    settings = ("driver.host=127.0.0.1", "driver.bindAddress=127.0.0.1", "ui.enabled=false")
    java = [*(f"-Dspark.{each}" for each in settings), "-cp", f"'{classes}'", SPARK_DRIVER]
    values = {
        "-jar beam-runners-spark-3-job-server-2.62.0.jar": " ".join(java),
        "HOST:7077": f"127.0.0.1:{master_port}",
    }
    _start_job_server(stack, "Spark", values, folder, job_port, free_port(), environment)
    return Cluster("spark", "Spark", _portable(8099, job_port, pool), folder, node_ids=tuple(nodes))


def _start_job_server(
    stack: contextlib.ExitStack,
    section: str,
    values: Mapping[str, object],
    folder: Path,
    job_port: int,
    artifact_port: int,
    environment: Mapping[str, str],
) -> None:
    (folder / "artifacts").mkdir()
    values = {
        **values,
        "--job-port=8099": f"--job-port={job_port}",
        "--artifact-port=8098": f"--artifact-port={artifact_port}",
        "/shared/artifacts": folder / "artifacts",
    }
    command = fill_in(read_block(section, "--artifacts-dir"), values)
    stack.enter_context(running("job-server", command, folder, listens(job_port), environment))


def _prism(
    stack: contextlib.ExitStack, folder: Path, free_port: Ports, variables: Mapping[str, str]
) -> Cluster:
    program = {"prism --": f"{engines()['prism'].folder}/prism --"}
    return _one_program("prism", "prism --job_port", program, stack, folder, free_port, variables)


def _beam(
    stack: contextlib.ExitStack, folder: Path, free_port: Ports, variables: Mapping[str, str]
) -> Cluster:
    program = {"python -m": f"{sys.executable} -m"}
    return _one_program(
        "beam", "local_job_service_main", program, stack, folder, free_port, variables
    )


def _one_program(
    name: str,
    word: str,
    program: Mapping[str, object],
    stack: contextlib.ExitStack,
    folder: Path,
    free_port: Ports,
    variables: Mapping[str, str],
) -> Cluster:
    job_port = free_port()
    pool = _start_pool(stack, folder, free_port(), variables)
    section = "Prism, and Beam's own job server"
    command = fill_in(read_block(section, word), {**program, "=8073": f"={job_port}"})
    stack.enter_context(running(name, command, folder, listens(job_port), {}))
    return Cluster(name, section, _portable(8073, job_port, pool), folder)


def _dask(
    stack: contextlib.ExitStack, folder: Path, free_port: Ports, variables: Mapping[str, str]
) -> Cluster:
    """Starts Dask's scheduler and workers.

    All are of the environment of the launcher, which pickles what they unpickle.
    """
    port = free_port()
    python = engines()["dask"].folder / "bin/python"
    own = {"dask ": f"{python.with_name('dask')} "}
    scheduler = fill_in(
        read_block("Dask", "dask scheduler"), {**own, "8786": f"{port} --no-dashboard"}
    )
    stack.enter_context(running("scheduler", scheduler, folder, listens(port), variables))
    values = {**own, "tcp://HOST:8786": f"--host 127.0.0.1 --no-dashboard tcp://127.0.0.1:{port}"}
    worker = fill_in(read_block("Dask", "dask worker"), values)

    def two_are_there(said: str) -> bool:
        return said.count("Registered to:") >= 2

    node = stack.enter_context(running("workers", worker, folder, two_are_there, variables))
    address = {"HOST:8786": f"127.0.0.1:{port}"}
    return Cluster(
        "dask",
        "Dask",
        address | {"--config configs/": f"--config {ROOT}/configs/"},
        folder,
        python,
        {"PYTHONPATH": str(find_code())},
        (node,),
    )


def _start_pool(
    stack: contextlib.ExitStack, folder: Path, port: int, variables: Mapping[str, str]
) -> int:
    """Starts the worker pool, and returns its port.

    One pool is enough for all task managers or executors of one machine.
    """
    environment = engines()["workers"].folder
    values = {
        "/opt/beambert/bin": environment / "bin",
        "-m apache_beam.runners.worker.worker_pool_main": Path(__file__).with_name(
            "worker_pool.py"
        ),
        "--service_port=50000": f"--service_port={port}",
    }
    command = fill_in(read_block("Flink", "worker_pool_main"), values)
    stack.enter_context(running("pool", command, folder, listens(port), variables))
    return port


def _portable(printed: int, job_port: int, pool: int) -> dict[str, object]:
    return {
        f"localhost:{printed}": f"localhost:{job_port}",
        "localhost:50000": f"localhost:{pool}",
        "--config configs/": f"--config {ROOT}/configs/",
    }
