"""How a process ends whose loader still reads."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    return make_dataset(tmp_path_factory.mktemp("processes") / "data", train=((60, 45),))


LEAVE_WHILE_READING = """
import sys, time
from pipeline.shards.dataset import open_dataset
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
    command = [sys.executable, "-c", LEAVE_WHILE_READING, str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "leaving\n"
    assert process.communicate(timeout=600)[1] == ""
    assert process.returncode == 7
