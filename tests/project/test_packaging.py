"""What is installed: our import names belong to us alone, a Beam worker's dependencies stay small,
C is optional.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOL = PYPROJECT["project"], PYPROJECT["tool"]


@pytest.mark.processes
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


def test_deepspeed_and_torch_are_bounded():
    trainer = PROJECT["optional-dependencies"]["trainer"]
    assert "deepspeed>=0.19.8,<0.20" in trainer
    assert "torch>=2.10,<2.16" in trainer


def test_every_package_says_what_it_is_for():
    for room in ("pipeline", "trainer", "tokenizer"):
        for path in [ROOT / room, *(ROOT / room).rglob("*")]:
            if path.is_dir() and any(path.glob("*.py")):
                assert (path / "__init__.py").read_text().startswith('"""'), (
                    f"{path}/__init__.py has no docstring"
                )


@pytest.fixture
def clean_checkout(tmp_path):
    """What a clone has of what is packaged: nothing compiled."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "build")
    for room in ("pipeline", "trainer", "tokenizer"):
        shutil.copytree(ROOT / room, folder / room, ignore=ignored)
    return folder


def build(kind, checkout, **variables):
    """The file that setuptools makes, as pip asks it to, but without a network."""
    output = checkout.parent / "made"
    code = f"from setuptools.build_meta import build_{kind}; build_{kind}({str(output)!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env=os.environ | variables,
        capture_output=True,
        check=True,
    )
    (made,) = output.iterdir()
    return made


@pytest.mark.processes
def test_sources_are_packaged_with_their_c(clean_checkout):
    with tarfile.open(build("sdist", clean_checkout)) as archive:
        packaged = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(path.relative_to(ROOT))
        for room in ("pipeline", "tokenizer", "trainer")
        for path in (ROOT / room).rglob("*.[ch]")
    }
    assert "tokenizer/_matcher.c" in sources
    assert sources <= packaged


@pytest.mark.processes
@pytest.mark.parametrize("compiler", [None, "/no/such/compiler"])
def test_without_a_compiler_all_but_the_compiled_modules_is_installed(clean_checkout, compiler):
    names = {module["name"].replace(".", "/") for module in TOOL["setuptools"]["ext-modules"]}
    if compiler is None and shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    with zipfile.ZipFile(
        build("wheel", clean_checkout, **({"CC": compiler} if compiler else {}))
    ) as archive:
        installed = archive.namelist()
    assert "tokenizer/encode.py" in installed
    assert not [name for name in installed if name.endswith((".c", ".h"))], (
        "newer than what they are compiled to"
    )
    assert {name.partition(".")[0] for name in installed if name.endswith((".so", ".pyd"))} == (
        set() if compiler else names
    )


def test_each_python_compiles_modules_of_its_own():
    """A module of the stable ABI, by the headers of 3.13, releases None once too often on 3.11."""
    assert not any("py-limited-api" in module for module in TOOL["setuptools"]["ext-modules"])
