"""A killed worker fails the command at once, a killed launcher leaves no worker, and both heal.

The builds look for texts of a task file too, which every worker is handed.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.shards.dataset import open_dataset
from tests.datasets import write_corpus
from tests.pipeline.test_interrupted import GATE, ROOT, STAGES, wait_until

pytestmark = pytest.mark.processes
SECONDS = 300  # not a claim: only what hangs takes as long
FLAGS = "--passes 2 --seq_lens 64 --num_buckets 16 --part_bytes 16384"
BEAMS_OWN = "-- --runner=FnApiRunner --direct_running_mode=multi_processing --direct_num_workers=2"
READ = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory):
    """Small parts enough that a kill comes in the middle; beside it the text of a document."""
    folder = write_corpus(tmp_path_factory.mktemp("long"), 300)
    with (folder / "a.jsonl").open() as file:
        (folder / "tasks.jsonl").write_text(file.readline())
    return folder


def command(corpus, output, *remainder, workers=2):
    inputs = ("--input", corpus / "a.jsonl", "--vocab", corpus / "vocab.txt", "--output", output)
    given = ("--task_files", corpus / "tasks.jsonl", "--workers", workers)
    flags = (*inputs, *FLAGS.split(), *given, *remainder)
    return [sys.executable, "-m", "pipeline", "build", *map(str, flags)]


@pytest.fixture(scope="module")
def expected(long_corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("expected") / "data"
    words = command(long_corpus, output, workers=1)
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    assert open_dataset(str(output)).manifest.counters["dropped_task_text"] == 12
    return what_was_built(output)


def what_was_built(output):
    """The root hash, and the list of documents that hold text of the task file."""
    overlaps = (output / "task_overlaps.parquet").read_bytes()
    return open_dataset(str(output)).manifest.root_hash, overlaps


def list_processes():
    """Parent and arguments of every process, by its pid."""
    words = ["ps", "-wweo", "pid=,ppid=,args="]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    return {int(pid): (int(parent), *args) for pid, parent, *args in rows}


def workers_below(pid):
    """Pids of the workers among the descendants of a process: what a shell of Beam's started."""
    mark, processes = "sdk_worker_main", list_processes()
    return [
        own
        for own, (parent, *args) in processes.items()
        if mark in args[0]
        and mark in processes.get(parent, (0, ""))[1]
        and pid in ancestors(own, processes)
    ]


def ancestors(pid, processes):
    while pid in processes:
        pid = processes[pid][0]
        yield pid


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pids):
    wait_until(lambda: not any(map(is_alive, pids)))


def with_code_of(folder):
    """The environment of programs that find a folder's modules before all others."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


def start_until(stage, corpus, output):
    """A running build and its workers; a stage has finished something, and waits before more."""
    (output.parent / "sitecustomize.py").write_text(GATE)
    (output.parent / "gate").write_text(f"{output}/{STAGES[stage]} 1")
    (output.parent / "waits").unlink(missing_ok=True)
    process = subprocess.Popen(
        command(corpus, output),
        cwd=ROOT,
        env=with_code_of(output.parent),
        **READ,
        # As nohup and background jobs of shells start programs; there are no threads here.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    )
    waits = output.parent / "waits"
    wait_until(
        lambda: (
            (waits.exists() and len(workers_below(process.pid)) == 2) or process.poll() is not None
        )
    )
    assert process.poll() is None, process.communicate()
    return process, workers_below(process.pid)


def test_killed_workers_and_launchers_leave_nothing_running_and_the_last_run_heals(
    long_corpus, expected, tmp_path
):
    """One build, of which every run but the last is killed."""
    output = tmp_path / "data"
    process, workers = start_until("tokens", long_corpus, output)
    process.kill()  # nobody waits for it yet: a zombie must not count as a launcher
    wait_until_gone(workers)
    process.communicate()
    process, workers = start_until("shards", long_corpus, output)
    os.kill(workers[0], signal.SIGKILL)
    _, message = process.communicate(timeout=SECONDS)
    assert process.returncode == 2, message
    last = message.strip().splitlines()[-1]
    assert "shards: a worker process was killed (signal 9" in last
    assert "the same command continues" in last
    assert "Traceback" not in message
    wait_until_gone(workers)
    assert not (output / "manifest.json").exists()
    subprocess.run(command(long_corpus, output), cwd=ROOT, check=True, capture_output=True)
    assert what_was_built(output) == expected


@pytest.mark.parametrize(("victim", "remainder"), [("worker", ""), ("parent", BEAMS_OWN)])
def test_a_worker_killed_while_the_others_start_fails_the_command(
    victim, remainder, long_corpus, tmp_path
):
    """Beam would wait for the others for ever."""
    words = command(long_corpus, tmp_path / "data", *remainder.split())
    process = subprocess.Popen(words, cwd=ROOT, **READ)
    wait_until(lambda: len(workers_below(process.pid)) == 2 or process.poll() is not None)
    worker = workers_below(process.pid)[0]
    os.kill(worker if victim == "worker" else list_processes()[worker][0], signal.SIGKILL)
    _, message = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "tokens: a worker process was killed (signal 9" in message.strip().splitlines()[-1]
    assert not workers_below(process.pid)


def test_a_worker_that_ends_itself_fails_the_command(long_corpus, tmp_path):
    """As a library may, by exit(); Beam would wait for it for ever."""
    code = "import os\ndef leave(text):\n    os._exit(0)\n"
    (tmp_path / "filter_that_leaves.py").write_text(code)
    words = command(long_corpus, tmp_path / "data", "--filter", "filter_that_leaves:leave")
    found = {"cwd": ROOT, "env": with_code_of(tmp_path), "timeout": SECONDS}
    result = subprocess.run(words, **found, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "tokens: a worker process ended by itself" in result.stderr.strip().splitlines()[-1]
