"""scripts/bench/webdataset_transform.py: what it sees of processes, and its samples."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.bench.webdataset_pipeline import make_samples
from scripts.bench.webdataset_transform import MEGABYTE, Watch, find_descendants, find_role

PROGRAM = """
import subprocess, sys
mark = "import Sdk" + "Harness;"
if mark in sys.argv:
    memory = b"x" * 100_000_000
    sum(range(10_000_000))
    print("ready", flush=True)
    sys.stdin.read()
else:
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[1], mark])
"""


@pytest.fixture
def below():
    """The child of a child of this process, which looks like a worker of 100 MB."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    [worker] = find_descendants(child.pid)
    yield worker
    child.stdin.close()
    child.wait()
    child.stdout.close()


def test_memory_and_cpu_of_a_process_far_below_are_seen(below):
    watch = Watch(10**9)
    watch.look()
    assert below in find_descendants(os.getpid())
    [peak] = watch.peaks()["worker"]
    assert 95 < peak < 200
    assert 0 < watch.cpu_seconds("worker") < 60
    assert not watch.killed


def test_a_process_that_takes_too_much_is_killed(below):
    watch = Watch(50 * MEGABYTE)
    watch.look()
    [killed] = watch.killed
    assert killed.startswith("worker at ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_the_program_started(number, tmp_path):
    """It is started like a background job of a shell, which ignores SIGINT."""
    program = [sys.executable, "-m", "scripts.bench.webdataset_transform"]
    flags = ["--reference_samples", "100000000", "--work", str(tmp_path)]
    shell = "trap '' INT; exec \"$@\""
    with subprocess.Popen(["bash", "-c", shell, "bash", *program, *flags]) as process:
        writer = wait_for_writer(process)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert not Path(f"/proc/{writer}").exists()
    assert not list(tmp_path.iterdir())


def wait_for_writer(process):
    """Returns the id of the process that the program started for webdataset.ShardWriter."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for found in find_descendants(process.pid):
            if b"ShardWriter" in Path(f"/proc/{found}/cmdline").read_bytes():
                return found
        time.sleep(0.1)
    raise AssertionError("the program started no writer")


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["python", "-c", "from apache_beam... import SdkHarness; SdkHarness()"], "worker"),
        (["java", "-Xmx1g", "org.apache.flink...TaskManagerRunner", "-D"], "task manager"),
        (["/opt/prism/prism", "--job_port=8073"], "prism"),
        (["bash", "-c", "/opt/prism/prism --job_port=8073"], ""),
        (["python", "worker_pool.py", "--service_port=50000"], ""),
    ],
)
def test_a_process_is_known_by_its_command(command, role):
    assert find_role(command) == role


def test_chunks_divide_the_samples():
    found = [sample for chunk in range(3) for sample in make_samples(chunk, 8, 200, 3)]
    assert sorted(sample["__key__"] for sample in found) == [f"sample-{n:09d}" for n in range(8)]
    assert {len(sample["bin"]) for sample in found} == {200}
    assert len({sample["bin"] for sample in found}) == 8
