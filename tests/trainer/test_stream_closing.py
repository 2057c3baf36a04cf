"""What is left of a stream that is closed, or a process group: no thread, no memory, no wait."""

import gc
import threading
import time
import weakref
from itertools import islice
from pathlib import Path

import pytest

from pipeline.shards.dataset import open_dataset
from tests.loaded_python import run_python
from tests.trainer.step_loader import load_steps
from trainer.stream.reading.settings import Reading

SIZES = {"rank": 0, "world_size": 1, "global_batch": 8, "micro_tokens": 8192, "seed": 0}
NAMES = ("prefetch", "fetch-")
LIMIT_SECONDS = 300  # not a claim: only what hangs takes as long


@pytest.fixture(scope="module")
def folder(make_dataset, tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("closing") / "data", train=((600, 450, 500, 700),))


@pytest.fixture
def threads_end():
    """Whether all threads of the test's streams have ended, with no collection of garbage."""
    gc.collect()
    before = set(threading.enumerate())  # a test before may have left one in a request that hangs

    def left():
        new = {each.name for each in set(threading.enumerate()) - before}
        return {name for name in new if name.startswith(NAMES)}

    def wait():
        deadline = time.monotonic() + LIMIT_SECONDS
        while left() and time.monotonic() < deadline:
            time.sleep(0.01)
        return not left()

    gc.disable()
    yield wait
    gc.enable()


def test_closed_while_it_plans_or_before_it_has_begun(folder, threads_end):
    dataset, reading = open_dataset(str(folder)), Reading(num_threads=2, max_read_bytes=1)
    for number in range(40):
        loader = load_steps(dataset, "train", 8192, **SIZES, num_lanes=8, reading=reading)
        time.sleep(0.0004 * number)
        loader.close()
        del loader
    assert threads_end()


def test_nothing_is_kept_of_a_closed_loader(folder, threads_end):
    with load_steps(open_dataset(str(folder)), "train", 8192, **SIZES) as loader:
        list(islice(loader, 5))
        reader = weakref.ref(loader.reads)
    del loader
    assert threads_end()
    assert reader() is None


def test_an_error_that_nobody_takes_holds_nothing(folder, threads_end):
    dataset = open_dataset(str(folder))
    dataset.read_bytes = None  # which cannot be called
    reading = Reading(budget_seconds=0.01)
    loader = load_steps(dataset, "train", 8192, **SIZES, reading=reading)
    reader = weakref.ref(loader.reads)
    loader._thread.join(LIMIT_SECONDS)
    loader.close()
    del loader
    assert threads_end()
    gc.collect()
    assert reader() is None


def test_nobody_waits_for_a_request_that_hangs(folder, threads_end):
    dataset, answer, is_asked = open_dataset(str(folder)), threading.Event(), threading.Event()

    def read_bytes(*_):
        is_asked.set()
        answer.wait(LIMIT_SECONDS)
        raise ConnectionResetError("late")

    dataset.read_bytes = read_bytes
    loader = load_steps(dataset, "train", 8192, **SIZES, reading=Reading(num_threads=2))
    try:
        assert is_asked.wait(LIMIT_SECONDS)
        loader.close()
        loader._thread.join(LIMIT_SECONDS)
        assert not loader._thread.is_alive()
    finally:
        answer.set()
    assert threads_end()


LEAVE_WHILE_READING = """
import sys, time
from pipeline.shards.dataset import open_dataset
from trainer.stream.step import StepLoader, StepSizes, StreamPlan

dataset = open_dataset(sys.argv[1])
read = dataset.read_bytes
dataset.read_bytes = lambda *span: (time.sleep(10_000), read(*span))[1]
sizes = StepSizes(rank=0, world_size=1, global_batch=8, micro_tokens=8192)
loader = StepLoader(dataset, "train", 8192, sizes, StreamPlan(seed=1))
time.sleep(0.2)
print("leaving", flush=True)
sys.exit(7)
"""


@pytest.mark.engines
def test_a_process_leaves_while_it_reads(folder):
    left = run_python(["-c", LEAVE_WHILE_READING, folder])
    assert (left.returncode, left.stdout, left.stderr) == (7, "leaving\n", "")


ALONE = """
import torch
from trainer.process.ranks import _gloo_states, start_ranks, stop_ranks

start_ranks()
torch.distributed.all_reduce(torch.ones(3))
print(len(list(_gloo_states())) > 0)
stop_ranks()
print({*_gloo_states()} <= {"S"})
"""


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are seen in /proc")
def test_threads_of_the_group_rest_when_it_is_left():
    assert run_python(["-c", ALONE]).stdout == "True\nTrue\n"
