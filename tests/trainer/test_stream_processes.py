"""The loader in the processes that people put loaders in, and how they end."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loaded_python import Program

ROOT = Path(__file__).parents[2]
NUM_STEPS = 5
pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset) -> Path:
    return make_dataset(tmp_path_factory.mktemp("processes") / "data", train=((60, 45),))


def run_python(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


OPEN_AND_LEAVE = """
import sys
import torch
from pipeline.shards.dataset import open_dataset
dataset = open_dataset(sys.argv[1])
dataset.blocks(dataset.all_shards[0])
"""


def test_a_process_that_opened_a_dataset_ends_well(folder):
    """Threads of Arrow's pool, which Parquet used to start, ended 3 of 10 by abort()."""
    with contextlib.ExitStack() as programs:
        started = [
            programs.enter_context(Program(["-c", OPEN_AND_LEAVE, folder])) for _ in range(8)
        ]
        ended = [program.wait() for program in started]
    assert [(program.stderr, program.returncode) for program in ended] == [("", 0)] * 8


LEAVE_WHILE_READING = """
import sys, time
from pipeline.shards.dataset import open_dataset
from tests.loaded_python import Program
from trainer.stream.step import StepLoader

dataset = open_dataset(sys.argv[1])
read = dataset.read_bytes
dataset.read_bytes = lambda *span: (time.sleep(10_000), read(*span))[1]
sizes = {"rank": 0, "world_size": 1, "global_batch": 8, "micro_tokens": 8192, "seed": 1}
loader = StepLoader(dataset, "train", 8192, **sizes)
time.sleep(0.2)
print("leaving", flush=True)
sys.exit(7)
"""


def test_a_process_leaves_while_it_reads(folder):
    process = run_python(LEAVE_WHILE_READING, folder)
    assert process.stdout.readline() == "leaving\n"
    assert process.communicate(timeout=600)[1] == ""
    assert process.returncode == 7
