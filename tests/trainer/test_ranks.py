"""Leaving a process group: nothing of it is at work any more when the interpreter ends."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
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
    command = [sys.executable, "-c", ALONE, str(ROOT)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout == "True\nTrue\n"
