"""Ranks under `deepspeed` and torchrun that are told to stop, lose their launcher, or hang."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import write_config
from tests.trainer.two_ranks import BIN, ROOT, launchers_environment
from trainer.checkpoints.files import find_checkpoints
from trainer.guards.watchdog import HUNG
from trainer.process.stopping import is_launcher

LIMIT_SECONDS = 600  # not a claim: only who hangs takes as long
DEEPSPEED = ("deepspeed", "--num_gpus", "2", "--module")
TORCHRUN = ("torchrun", "--nproc_per_node", "2", "--shutdown_timeout", "280", "-m")
ALONE = ("python", "-u", "-m")
NOTICE = "stopping after this step, saving; again leaves at once"


def words_of(pid):
    """Of a process's command line; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


class Job:
    """Training without end, from its first logged step on; all its processes name its config."""

    def __init__(self, folder, data, *flags, launcher=DEEPSPEED):
        self.run, self.config, self.log = (folder / name for name in ("run", "run.yaml", "log.txt"))
        phase = {"seq_len": 16, "global_batch": 8, "steps": 1_000_000, "peak_lr": 0.001}
        settings = {"phases": [phase], "micro_tokens": 64, "checkpoint": {"interval": 0}}
        name, *options, module = launcher
        port = [] if launcher == ALONE else ["--master_port", str(free_port())]
        words = [module, "trainer", *write_config(self.run, data, **settings), *flags]
        command, places = [str(BIN / name), *port, *options, *words], {"cwd": ROOT}
        places |= {"env": launchers_environment(), "start_new_session": True}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **places)
        before, began = self.last_step(), time.monotonic()
        while self.last_step() < before + 3:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() - began < LIMIT_SECONDS, self.said()
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self):
        return self.log.read_text()[-5000:]

    def pids(self, word=""):
        """Living processes of the job whose command line has a word."""
        pids = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
        wanted = {str(self.config), word or str(self.config)}
        return [pid for pid in pids if wanted <= set(words_of(pid))]

    def ranks(self):
        return [pid for pid in self.pids() if words_of(pid)[1:4] == ["-u", "-m", "trainer"]]

    def wait_until_gone(self):
        """Waits for the last rank to be gone, and for the launcher."""
        began = time.monotonic()
        while left := self.ranks():
            assert time.monotonic() - began < LIMIT_SECONDS, f"{left} are left: {self.said()}"
            time.sleep(0.02)
        self.process.wait(LIMIT_SECONDS)

    def last_step(self):
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return max((json.loads(line)["step"] for line in lines if line.endswith("\n")), default=0)

    def saved_step(self):
        finished, unfinished = find_checkpoints(self.run / "checkpoints")
        assert not unfinished, "a save was cut short"
        return int(finished[-1].name.removeprefix("step-")) if finished else 0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.mark.engines
@pytest.mark.parametrize(
    ("launcher", "number"),
    [(DEEPSPEED, signal.SIGKILL), (TORCHRUN, signal.SIGTERM)],
)
def test_all_save_and_leave_when_told_to_stop_or_without_launcher(tmp_path, data, launcher, number):
    with Job(tmp_path, data, launcher=launcher) as job:
        before = job.last_step()
        assert len(job.ranks()) == 2
        os.kill(job.process.pid, number)
        job.wait_until_gone()
        assert job.saved_step() == job.last_step() >= before, job.said()
        assert job.process.returncode, "it does not say that the run is finished"


@pytest.mark.engines
@pytest.mark.parametrize("launcher", [ALONE, DEEPSPEED], ids=lambda launcher: launcher[0])
def test_ctrl_c_saves_and_leaves(tmp_path, data, launcher):
    with Job(tmp_path, data, launcher=launcher) as job:
        before = job.last_step()
        os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
        job.wait_until_gone()
        said = job.log.read_text()
        assert job.saved_step() == job.last_step() >= before, said
        assert said.count(NOTICE) == 1
        assert f"stopped by a signal and saved after step {job.saved_step()}; the same" in said
        assert job.process.returncode == {ALONE: 130, DEEPSPEED: -2}[launcher], said
        assert "trainer/" not in said, "a traceback of ours"


BLOCKED = """
import ctypes, sys, threading
from types import SimpleNamespace
from trainer.process.stopping import StopRequest, stops_requested
name = sys.argv[1]
watch = SimpleNamespace(
    on_loss=None, has_launcher=name != "alone", has_deepspeed=name == "deepspeed"
)
mutex = ctypes.create_string_buffer(64)
class Loud(StopRequest):  # by the listening thread, and not by Python's own handler
    def make(self, number, frame=None):
        if threading.current_thread() is not threading.main_thread():
            print("made", number, flush=True)
with stops_requested(watch, Loud(), lambda text: print(text, flush=True), "first"):
    print("ready", flush=True)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("launcher", "numbers"),
    [
        ("alone", [signal.SIGINT, signal.SIGINT]),
        ("deepspeed", [signal.SIGINT, signal.SIGTERM, signal.SIGINT]),
        ("torchrun", [signal.SIGINT, signal.SIGTERM]),
    ],
)
def test_the_second_ctrl_c_leaves_though_the_main_thread_waits_for_ever(launcher, numbers):
    command = [sys.executable, "-c", BLOCKED, launcher]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = [["ready"], ["made 2", "first"], ["made 15"]]
        for lines, number in zip(said, numbers, strict=False):
            assert [process.stdout.readline().strip() for _ in lines] == lines
            process.send_signal(number)
        assert process.communicate(timeout=LIMIT_SECONDS) == ("", "interrupted\n")
        assert process.returncode == 130


@pytest.mark.engines
def test_a_stopped_rank_ends_the_job_and_is_named(tmp_path, data):
    with Job(tmp_path, data, "--safety.watchdog_minutes", "0.5") as job:
        [pid] = job.pids("--local_rank=1")
        os.kill(pid, signal.SIGSTOP)
        job.wait_until_gone()
        said = job.said()
        assert job.process.returncode == HUNG, said
        assert "watchdog: no rank has come further for 30 s." in said
        assert f"No answer from rank 1 on {socket.gethostname()} (process {pid})" in said
        stacks = (job.run / "stacks" / "rank-00000.txt").read_text()
        assert "rank 0 on" in stacks
        assert "train_phase" in stacks, "where the loop waits"
        assert not (job.run / "stacks" / "rank-00001.txt").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/venv/bin/python3 /venv/bin/deepspeed --num_gpus 2 --module trainer", True),
        ("/venv/bin/python -u -m deepspeed.launcher.launch --world_info=e30=", True),
        ("/venv/bin/python -m torch.distributed.run --nproc_per_node 2", True),
        ("/venv/bin/python3 /venv/bin/torchrun --nproc_per_node 2", True),
        ("/bin/bash -c deepspeed --num_gpus 2", False),
        ("/venv/bin/python -m pytest tests", False),
        ("/venv/bin/python -u -m trainer --local_rank=0 pretrain", False),
        ("", False),
    ],
)
def test_which_parents_are_launchers(line, expected):
    words = line.split(" ", 2) if "-c" in line else line.split()
    assert is_launcher(words) is expected
