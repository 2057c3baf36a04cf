"""What is installed: our import names belong to us alone, and C is optional."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = PYPROJECT["tool"]
ROOMS = ("pipeline", "trainer", "tokenizer")


@pytest.mark.processes
def test_import_names_are_ours_alone():
    owners = importlib.metadata.packages_distributions()
    assert all({*owners.get(name, ())} <= {"beambert"} for name in ROOMS)
    code = (
        f"from importlib import import_module as load; print(*(load(n).__file__ for n in {ROOMS}))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], cwd="/", text=True)
    assert printed.split() == [str(ROOT / name / "__init__.py") for name in ROOMS]


def test_every_pinned_version_takes_the_oldest_python():
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    too_new = {}
    seen = 0
    for package in importlib.metadata.distributions():
        wanted = package.metadata["Requires-Python"]
        if pins.get(package.metadata["Name"].lower()) == package.version:
            seen += 1
            if wanted and oldest not in SpecifierSet(wanted):
                too_new[package.metadata["Name"]] = wanted
    assert seen > 50
    assert not too_new, f"constraints.txt has versions that Python {oldest} cannot install"


@pytest.fixture
def clean_checkout(tmp_path):
    return copy_checkout(tmp_path / "checkout")


def copy_checkout(folder):
    """What a clone has of what is packaged: nothing compiled."""
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd", "build")
    for name in ("configs", *ROOMS):  # pipeline has a link to configs
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    return folder


def build(kind, checkout, **variables):
    """The file that setuptools makes, as pip asks it to, but without a network."""
    output = checkout.parent / "made"
    code = f"from setuptools.build_meta import build_{kind}; build_{kind}({str(output)!r})"
    command, environment = [sys.executable, "-c", code], os.environ | variables
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=True)
    (made,) = output.iterdir()
    return made


@pytest.mark.processes
def test_sources_are_packaged_with_their_c(clean_checkout):
    with tarfile.open(build("sdist", clean_checkout)) as archive:
        packaged = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.[ch]")
    }
    assert "tokenizer/_matcher.c" in sources
    assert sources <= packaged


@pytest.mark.processes
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler here")
def test_a_wheel_has_every_compiled_module_and_no_source_that_is_newer(clean_checkout):
    with zipfile.ZipFile(build("wheel", clean_checkout)) as archive:
        installed = archive.namelist()
    assert not [name for name in installed if name.endswith((".c", ".h"))]
    compiled = {name.partition(".")[0] for name in installed if name.endswith((".so", ".pyd"))}
    modules = TOOL["setuptools"]["ext-modules"]
    assert compiled == {module["name"].replace(".", "/") for module in modules}


def test_each_python_compiles_modules_of_its_own():
    """A module of the stable ABI, by the headers of 3.13, releases None once too often on 3.11."""
    assert not any("py-limited-api" in module for module in TOOL["setuptools"]["ext-modules"])
