"""Ctrl-C in commands: while they import, while they work, and while something swallows it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

# Stands before a module that the command imports, and waits there.
LATE = """
import sys, time
from pathlib import Path
class Late:
    def find_spec(self, name, *_):
        if name == "MODULE":
            Path(__file__).with_name("waits").touch()
            try:
                while True:
                    time.sleep(0.05)
            except BaseException:
                raise ImportError("an import that was interrupted")
sys.meta_path.insert(0, Late())
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("torch", ["trainer", "doctor"]),
        ("trainer.cli", ["trainer", "report", "run"]),
        ("pipeline.shards.verify", ["pipeline", "verify", "data"]),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_line_and_no_traceback(module, command, number, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LATE.replace("MODULE", module))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with subprocess.Popen(
        [sys.executable, "-m", *command], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        began = time.monotonic()
        while not (tmp_path / "waits").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() - began < 600
            time.sleep(0.02)
        os.killpg(process.pid, number)
        said = process.communicate(timeout=600)
    if (module, number) == ("trainer.cli", signal.SIGTERM):  # nothing handles it yet
        assert (said, process.returncode) == (("", ""), -signal.SIGTERM)
    else:
        assert (said, process.returncode) == (("", "interrupted\n"), 128 + number)
