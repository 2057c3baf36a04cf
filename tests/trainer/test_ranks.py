"""Leaving a process group: nothing of it is at work any more when the interpreter ends."""

from pathlib import Path

import pytest

from tests.loaded_python import run_python

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
