"""Memory that is freed and asked for again stays with the process."""

import os
import platform
import subprocess
import sys

import pytest

from trainer.process.allocator import ENVIRONMENT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told"),
]

FAULTS = """
import resource
from trainer.process.allocator import keep_freed_memory
done = {done}
def faults():
    for _ in range(20):
        pieces = [b"x" * 2**23 for _ in range(8)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = faults()
print(done, faults() - before)
"""


def run(done, **variables):
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", FAULTS.format(done=done)]
    printed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    return printed[0] == "True", int(printed[1])


def test_pieces_that_come_and_go_cost_no_new_pages():
    _, given_back = run("False")
    done, kept = run("keep_freed_memory()")
    assert done
    assert given_back > 100_000  # 20 times 8 pieces of 2,048 pages each
    assert kept < 20_000


def test_the_environment_has_the_last_word():
    done, kept = run("keep_freed_memory()", **ENVIRONMENT)
    assert not done
    assert kept < 20_000
