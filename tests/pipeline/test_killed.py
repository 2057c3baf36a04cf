"""A killed worker fails the command at once and clearly, a killed launcher leaves no worker, and both heal."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.shards.dataset import open_dataset

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SECONDS = 20  # on a machine that others use; the lines below say how long it took


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory):
    """Enough small parts and shards that a kill comes in the middle."""
    words = [f"{first}{last}" for first in "bcdfgklmnp" for last in ("ana", "elo", "iri", "otu", "uma")]
    folder = tmp_path_factory.mktemp("long")
    with (folder / "a.jsonl").open("w") as file:
        for number in range(3000):
            sentences = [
                " ".join(words[(number * 7 + row * 3 + step * (1 + number % 11)) % 50] for step in range(12))
                for row in range(12)
            ]
            file.write(json.dumps({"text": ". ".join(sentences) + f" {number}."}) + "\n")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words, *"0123456789", *(f"##{n}" for n in range(10))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


def command(corpus, output):
    flags = ("--passes", 6, "--seq_lens", 64, "--num_buckets", 16, "--part_bytes", 16384, "--workers", 2)
    inputs = ("--input", corpus / "a.jsonl", "--vocab", corpus / "vocab.txt", "--output", output)
    return [sys.executable, "-m", "pipeline", "build", *map(str, (*inputs, *flags))]


@pytest.fixture(scope="module")
def expected(long_corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("expected") / "data"
    subprocess.run(command(long_corpus, output), cwd=ROOT, check=True, capture_output=True)
    return open_dataset(str(output)).manifest.root_hash


def workers_below(pid):
    """Pids of Beam's workers among the descendants of a process."""
    listed = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    family = {pid}
    for _ in range(4):
        family |= {int(own) for own, parent, *_ in rows if int(parent) in family}
    return [
        int(own)
        for own, _, *args in rows
        if int(own) in family and "sdk_worker_main" in args[0] and "/sh" not in args[0].split()[0]
    ]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=60):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "nothing happened"
        time.sleep(0.02)
    return time.monotonic() - start


def start_until(stage, corpus, output):
    """A running build of which the stage has finished something, but not all."""
    process = subprocess.Popen(
        command(corpus, output),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As nohup and background jobs of shells start programs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509  (no threads here)
    )
    pattern = {"tokens": "tokens/*.json", "shards": "_tasks/train/**/*.json"}[stage]
    least = {"tokens": 3, "shards": 1}[stage]
    wait_until(lambda: len(list(output.glob(pattern))) >= least or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def assert_heals(corpus, output, expected):
    assert not (output / "manifest.json").exists()
    subprocess.run(command(corpus, output), cwd=ROOT, check=True, capture_output=True)
    assert open_dataset(str(output)).manifest.root_hash == expected


@pytest.mark.parametrize("stage", ["tokens", "shards"])
def test_a_killed_worker_fails_the_command_and_the_next_run_heals(stage, long_corpus, expected, tmp_path):
    process = start_until(stage, long_corpus, tmp_path / "data")
    workers = workers_below(process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    start = time.monotonic()
    _, message = process.communicate(timeout=SECONDS)
    print(f"{stage}: the command ended after {time.monotonic() - start:.1f} s")
    print(message)
    assert process.returncode == 2
    last = message.strip().splitlines()[-1]
    assert f"{stage}: a worker process was killed (signal 9" in last
    assert "the same command continues" in last
    assert "Traceback" not in message
    assert wait_until(lambda: not any(map(is_alive, workers))) < SECONDS
    assert_heals(long_corpus, tmp_path / "data", expected)


@pytest.mark.parametrize("stage", ["tokens", "shards"])
def test_no_worker_outlives_a_killed_launcher(stage, long_corpus, expected, tmp_path):
    process = start_until(stage, long_corpus, tmp_path / "data")
    workers = workers_below(process.pid)
    assert len(workers) == 2
    process.kill()  # nobody waits for it yet: a zombie must not count as a launcher
    print(f"{stage}: workers ended after {wait_until(lambda: not any(map(is_alive, workers)), SECONDS):.1f} s")
    process.communicate()
    assert_heals(long_corpus, tmp_path / "data", expected)


@pytest.mark.parametrize("victim", ["sdk_worker_main", "/bin/sh"])
def test_a_worker_killed_while_the_others_start_fails_the_command(victim, long_corpus, tmp_path):
    """Those do not watch the launcher's lock yet, and Beam would wait for them for ever; nor does their shell."""
    process = subprocess.Popen(
        command(long_corpus, tmp_path / "data"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(workers_below(process.pid)) == 2 or process.poll() is not None)
    listed = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    family = [line.split(maxsplit=1) for line in listed.splitlines() if "sdk_worker_main" in line]
    parents = {
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in workers_below(process.pid)
    }
    shells = [int(pid) for pid, args in family if pid in parents and args.startswith(victim)]
    os.kill((shells or workers_below(process.pid))[0], signal.SIGKILL)
    _, message = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "tokens: a worker process was killed (signal 9" in message.strip().splitlines()[-1]
    assert not workers_below(process.pid)
