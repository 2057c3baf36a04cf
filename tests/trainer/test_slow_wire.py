"""scripts/soak/slow_wire.py: what is left of its nodes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import subprocess, time
from scripts.checkout import exit_on_signals
from scripts.soak.slow_wire import linked_nodes

exit_on_signals()
with linked_nodes("reno") as nodes:
    rank_of_launcher = "sleep 1000 & echo $!; wait"
    for node in nodes:
        subprocess.Popen(["ip", "netns", "exec", node, "sh", "-c", rank_of_launcher])
    time.sleep(1000)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="needs root, and ip of iproute2"
)
def test_a_signal_ends_the_processes_of_the_nodes_and_the_nodes():
    """The ranks of a node are children of a launcher, which is the child of the program."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not [rank for rank in ranks if is_running(rank)]
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert f"-{process.pid}" not in listed.stdout


def is_running(process_id):
    """Says whether a process has not ended; nobody may have waited for it yet."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
