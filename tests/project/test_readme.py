"""The README is short, and its two commands explain themselves; test_demo.py runs the first."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.processes
def test_the_two_scripts_explain_themselves():
    named = re.findall(r"(?m)^scripts/\w+", README)
    assert {*named} == {"scripts/demo", "scripts/test"}
    assert all(os.access(ROOT / name, os.X_OK) for name in named)
    demo = ROOT / "scripts/demo"
    assert "--minutes" in subprocess.check_output([demo, "--help"], text=True)
    command, how = [demo, "--minutes", "soon"], {"capture_output": True, "text": True}
    wrong = subprocess.run(command, **how, check=False)
    assert wrong.returncode == 2
    assert "--minutes takes a whole number" in wrong.stderr


@pytest.mark.processes
def test_a_failed_installation_is_not_taken_for_one_that_succeeded(tmp_path):
    """Sourced by a person's shell, which does not end at the first error."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ]\n')
    python.chmod(0o755)
    code = 'cd /; . "$1/scripts/environment.sh"; echo "$? $PATH"'
    places = {"BASE_PYTHON": str(python), "VENV": str(tmp_path / "venv")}
    environment = places | {"PATH": os.environ["PATH"]}
    command = ["bash", "-c", code, "bash", ROOT]
    printed = subprocess.check_output(command, env=environment, text=True)
    assert printed == f"1 {os.environ['PATH']}\n"
    assert not (tmp_path / "venv/.beambert-installed").exists()
