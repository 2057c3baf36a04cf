"""What is installed: our import names belong to us alone, and a Beam worker's dependencies stay small."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["pipeline", "trainer", "tokenizer"])
def test_import_names_are_ours_alone(name):
    owners = importlib.metadata.packages_distributions().get(name)
    assert owners is None or set(owners) == {"beambert"}
    found = subprocess.run(
        [sys.executable, "-c", f"import {name}; print({name}.__file__)"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()) == ROOT / name / "__init__.py"


def test_the_package_cannot_be_uploaded():
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]


def test_core_dependencies_leave_torch_and_beam_out():
    core = " ".join(PROJECT["dependencies"])
    assert not any(name in core for name in ("torch", "deepspeed", "apache-beam", "transformers"))


def test_deepspeed_is_pinned_and_torch_is_bounded():
    trainer = PROJECT["optional-dependencies"]["trainer"]
    assert "deepspeed==0.19.8" in trainer
    assert "torch>=2.10,<2.14" in trainer


def test_every_package_says_what_it_is_for():
    for room in ("pipeline", "trainer", "tokenizer"):
        for path in [ROOT / room, *(ROOT / room).rglob("*")]:
            if path.is_dir() and any(path.glob("*.py")):
                assert (path / "__init__.py").read_text().startswith('"""'), f"{path}/__init__.py has no docstring"
