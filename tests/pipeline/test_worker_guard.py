"""The end of worker processes where their launcher is interrupted, in whatever state Beam is.

A thread with the name of Beam's own stands for the one that starts a worker and awaits it.
"""

import fcntl
import inspect
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
)

from pipeline.jobs.run_beam import _WORKER_COMMAND
from pipeline.jobs.worker_guard import _BEAMS_THREAD, _INTERRUPT, VARIABLE, guard_workers

pytestmark = pytest.mark.processes
SLEEP = ["sleep", "600"]


def wait_for_release(path):
    """Returns once the launcher has let go of its lock."""
    with Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_starts_while_beam_unwinds_has_ended_when_the_block_is_left(
    number, tmp_path, monkeypatch
):
    """Beam starts workers in threads of their own, which an interruption does not reach."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    path, ended = str(tmp_path / "lock"), []

    def start_late():
        wait_for_release(path)
        time.sleep(1)  # the launcher does nothing else meanwhile
        ended.append(subprocess.Popen(SLEEP, env=dict(os.environ)).wait())

    def handler(*_):
        raise KeyboardInterrupt

    def run_job():
        with guard_workers(path):
            threading.Thread(name=_BEAMS_THREAD, target=start_late, daemon=True).start()
            signal.raise_signal(number)

    before = signal.signal(number, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_job()
    finally:
        signal.signal(number, before)
    assert ended == [-signal.SIGKILL]
    assert VARIABLE not in os.environ


def test_a_worker_that_the_same_key_ended_interrupts_no_clean_up(tmp_path):
    """Ctrl-C in a terminal may end a worker that starts up, whose end interrupts too."""
    done = []

    def run_job():
        with guard_workers(str(tmp_path / "lock")):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(_INTERRUPT)
                done.append("clean-up")

    with pytest.raises(KeyboardInterrupt):
        run_job()
    assert done == ["clean-up"]


def test_a_worker_whose_launcher_has_ended_starts_no_python(tmp_path):
    """Importing takes it seconds, on a busy machine minutes."""
    environment = os.environ | {VARIABLE: str(tmp_path / "gone" / "lock")}
    ran = subprocess.run(
        _WORKER_COMMAND, shell=True, env=environment, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_beams_thread_has_the_name_by_which_it_is_awaited():
    assert f"name='{_BEAMS_THREAD}'" in inspect.getsource(SubprocessSdkWorkerHandler.start_worker)
