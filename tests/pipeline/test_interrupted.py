"""Ctrl-C and SIGTERM in a build: one line, the exit code, nothing left half; the next run ends it.

A gate stops every write of a stage, once some of its files are there.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.shards.dataset import open_dataset
from pipeline.storage.local import find_temporaries
from tests.datasets import write_corpus

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]
SECONDS = 600  # not a claim: only what hangs takes as long
FLAGS = (
    "--passes 2 --seq_lens 64 --num_buckets 4 --part_bytes 65536 --near_duplicates 0.9"
    " --vocab_size 300"
)
# Found before all other modules by every process; each file is synced before it gets its name.
GATE = """
import glob, os, time
from pathlib import Path
sync, gate = os.fsync, Path(__file__).with_name("gate")
def sync_or_wait(file):
    if gate.exists():
        pattern, least = gate.read_text().split()
        path = os.readlink(f"/proc/self/fd/{file}")
        if len(glob.glob(pattern)) >= int(least) and Path(path).parent == Path(pattern).parent:
            Path(gate.parent, "waits").touch()
            while True:
                time.sleep(0.05)
    sync(file)
os.fsync = sync_or_wait
"""
LATE_IMPORT = """
import sys, time
from pathlib import Path
class Late:
    def find_spec(self, name, *_):
        if name == "apache_beam":
            Path(__file__).with_name("imports").touch()
            try:
                while True:
                    time.sleep(0.05)
            except KeyboardInterrupt:
                raise ImportError("it was interrupted")
sys.meta_path.insert(0, Late())
"""
STAGES = {
    "vocabulary": "_words/*.json",
    "tokens": "tokens/*-*.json",
    "near-duplicates": "tokens/near_duplicates/*",
    "shards": "_tasks/train/L64/pass-00/*.json",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), 300)


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("expected") / "data"
    subprocess.run(command(corpus, output, 1), cwd=ROOT, check=True, capture_output=True)
    return open_dataset(str(output)).manifest.root_hash


def command(corpus, output, workers):
    words = ["--input", str(corpus / "a.jsonl"), "--output", str(output), "--workers", str(workers)]
    return [sys.executable, "-m", "pipeline", "build", *words, *FLAGS.split()]


def start(corpus, folder, workers):
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.Popen(
        command(corpus, folder / "data", workers),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_until_it_waits(corpus, folder, workers):
    (folder / "waits").unlink(missing_ok=True)
    process = start(corpus, folder, workers)
    wait_until(lambda: (folder / "waits").exists() or process.poll() is not None)
    return process


def wait_until(condition):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < SECONDS, "nothing happened"
        time.sleep(0.02)


def session_of(pid):
    """Living processes of a session, which began with this one."""
    words = ["ps", "-o", "pid=,stat=,args=", "-s", str(pid)]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return [line for line in listed.splitlines() if " Z" not in line]


# Stage, workers, signal, whether the whole group is told, and what is kept.
INTERRUPTIONS = [
    ("vocabulary", 2, signal.SIGINT, True, None),
    ("tokens", 2, signal.SIGTERM, True, "parts of the input"),
    ("near-duplicates", 2, signal.SIGINT, False, "tables of near-duplicates"),
    ("shards", 1, signal.SIGTERM, False, "shards"),
]


def test_one_line_is_said_and_the_next_run_goes_on(corpus, expected, tmp_path):
    """One build, of which every run but the last is interrupted, each in a later stage."""
    (tmp_path / "sitecustomize.py").write_text(GATE)
    found = None
    for stage, workers, number, to_group, noun in INTERRUPTIONS:
        (tmp_path / "gate").write_text(f"{tmp_path}/data/{STAGES[stage]} 1")
        process = start_until_it_waits(corpus, tmp_path, workers)
        (os.killpg if to_group else os.kill)(process.pid, number)
        said, complained = process.communicate(timeout=SECONDS)
        print(complained)
        assert process.returncode == 128 + number
        assert found is None or found in complained.splitlines()
        kept = "none of the word counts are kept, the same command makes them again"
        if noun is not None:
            finished, total = re.search(r"interrupted; (\d+) of (\d+) ", complained).groups()
            assert 1 <= int(finished) < int(total)
            kept = f"{finished} of {total} {noun} are kept, the same command continues"
            found = f"{finished} of {total} {noun} are there from an earlier launch; continuing"
        assert complained.splitlines()[-1] == f"interrupted; {kept}"
        for word in ("Traceback", "Error", "killed"):
            assert word not in said + complained
        assert session_of(process.pid) == []
        assert find_temporaries([path.name for path in (tmp_path / "data").rglob("*")]) == []
    (tmp_path / "gate").unlink()
    process = start(corpus, tmp_path, workers)
    _, complained = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, complained
    assert found in complained.splitlines()
    assert open_dataset(str(tmp_path / "data")).manifest.root_hash == expected


def test_before_there_is_anything_to_keep_it_ends_at_once(corpus, tmp_path):
    """Whatever the process imports at that moment, whose clean-up would make other errors of it."""
    (tmp_path / "sitecustomize.py").write_text(LATE_IMPORT)
    process = start(corpus, tmp_path, 2)
    wait_until(lambda: (tmp_path / "imports").exists() or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    printed, complained = process.communicate(timeout=SECONDS)
    assert [line for line in printed.splitlines() if not line.startswith("input: ")] == []
    assert (complained, process.returncode) == ("interrupted\n", 130)
    wait_until(lambda: session_of(process.pid) == [])
