"""The supervisor alone; scripts/soak/kill_training.py kills training under it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.trainer.two_ranks import ROOT

SUPERVISE = [sys.executable, str(ROOT / "scripts/supervise"), "--pause_seconds", "0.05"]


def supervise(tmp_path, script, *flags, name="job"):
    """Runs `script` under the supervisor; $runs is which run it is."""
    program, runs = tmp_path / name, f"{tmp_path}/runs"
    program.write_text(f"#!/bin/sh\necho x >>{runs}\nruns=$(wc -l <{runs})\n{script}\n")
    program.chmod(0o755)
    return subprocess.Popen([*SUPERVISE, *flags, str(program)], stderr=subprocess.PIPE, text=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "flags", "name", "code", "runs"),
    [
        ("exit 0", [], "job", 0, 1),
        ("exit 0", [], "deepspeed", 0, 2),
        ("exit 2", [], "job", 2, 1),
        ("exit 143", [], "job", 143, 1),
        ("kill -TERM $$", [], "job", 143, 1),
        ("[ $runs -ge 3 ] || kill -KILL $$", [], "job", 0, 3),
        ("[ $runs -ne 2 ] || exit 1", [], "deepspeed", 0, 4),
        ("printf finished >$BEAMBERT_OUTCOME_FILE", [], "deepspeed", 0, 1),
        ("[ $runs -ge 4 ] || printf running >$BEAMBERT_OUTCOME_FILE", [], "deepspeed", 0, 5),
        ("exit 75", ["--restarts", "2"], "job", 75, 3),
        ("kill -KILL $$", ["--restarts", "1"], "job", 137, 2),
    ],
)
def test_what_is_tried_again(tmp_path, script, flags, name, code, runs):
    process = supervise(tmp_path, script, *flags, name=name)
    _, said = process.communicate(timeout=600)
    assert (process.returncode, (tmp_path / "runs").read_text()) == (code, "x\n" * runs), said
    assert said.count("supervise:") == (runs - 1) + ("giving up" in said)


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_reaches_the_command_once_and_ends_both(tmp_path, number):
    """By Ctrl-C the `deepspeed` command ends before its ranks, here a background process."""
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    rank = f"(trap '' INT TERM; {wait}; touch {tmp_path}/left) &"
    trap = f"trap 'echo x >>{tmp_path}/told; exit {128 + number}' INT TERM"
    wait = f"touch {tmp_path}/ready\nwhile :; do sleep 0.05; done"
    process = supervise(tmp_path, f"{rank}\n{trap}\n{wait}")
    wait_for(tmp_path / "ready")
    os.kill(process.pid, number)
    wait_for(tmp_path / "told")
    (tmp_path / "go").touch()
    process.wait(timeout=600)
    assert (tmp_path / "left").exists() or number == signal.SIGTERM
    wait_for(tmp_path / "left")
    process.communicate(timeout=600)
    assert process.returncode == 128 + number
    assert (tmp_path / "runs").read_text() == (tmp_path / "told").read_text() == "x\n"


def wait_for(path):
    began = time.monotonic()
    while not path.exists():
        assert time.monotonic() - began < 600
        time.sleep(0.05)
