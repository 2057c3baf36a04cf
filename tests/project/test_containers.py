"""The two Dockerfiles, read instruction by instruction as Docker would run them, without Docker.

COPY finds its sources in git, pip the files, extras and pins it is told of, and Python starts where
it imports what was installed. tests/stores/test_worker_package.py runs the worker's steps.
"""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.dockerfiles import ignored_names, steps

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, TOOL = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]
EXTRAS = PROJECT["optional-dependencies"]
# pipeline/command_line/recipes is a link to it, which leads nowhere where it is not copied
RECIPES = "configs"
ROOMS = {pattern.rstrip("*") for pattern in TOOL["packages"]["find"]["include"]}
PINS = dict(
    line.lower().split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line
)
WORKER, TRAINER = (
    ROOT / f"scripts/docker/{name}.Dockerfile" for name in ("beam-worker", "trainer-gpu")
)
each_image = pytest.mark.parametrize("path", [WORKER, TRAINER], ids=lambda path: path.stem)


class Image(NamedTuple):
    """The base, the variables, what lies where, every RUN with its folder, and where it starts."""

    base: str
    values: dict[str, str]
    files: dict[PurePosixPath, str]
    runs: list[tuple[str, PurePosixPath]]
    folder: PurePosixPath


def image(text):
    done = list(steps(text))
    copied = [step.copied() for step in done if step.name == "COPY"]
    files = {place: source for each in copied for place, source in each.items()}
    [base] = [step.arguments for step in done if step.name == "FROM"]
    runs = [(step.arguments, step.folder) for step in done if step.name == "RUN"]
    return Image(base, done[-1].values, files, runs, done[-1].folder)


def install(runs):
    """Of the one `pip install` of the image: its folder, constraints and the extras it names."""
    commands = [(part, folder) for run, folder in runs for part in re.split(r"&&|;", run)]
    [found] = [(part, folder) for part, folder in commands if "pip install" in part]
    words, folder = shlex.split(found[0]), found[1]
    [wanted] = [word for word in words if word.startswith(".")]
    constraints = folder / words[words.index("--constraint") + 1]
    return folder, constraints, re.findall(r"[\w-]+", wanted)


def requirements(extras):
    """Of the core and of extras, with those of the extras that an extra names."""
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in EXTRAS[extra])]
    for requirement in map(Requirement, wanted):
        if requirement.name == PROJECT["name"]:
            yield from requirements(requirement.extras)
        else:
            yield requirement


@pytest.mark.processes
@each_image
def test_sources_of_copy_are_in_git(path):
    sources = set(image(path.read_text())[2].values())
    kept = [PurePosixPath(file) for file in files_of_git(*sources)]
    assert [each for each in sources if not any(file.is_relative_to(each) for file in kept)] == []


def files_of_git(*names):
    command = ["git", "ls-files", *names]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    return listed.stdout.splitlines()


@pytest.mark.processes
@each_image
def test_commands_are_shell(path):
    for command, _ in image(path.read_text())[3]:
        subprocess.run(["sh", "-n"], input=command, text=True, check=True)


@each_image
def test_pip_finds_all_that_it_packs(path):
    _, _, files, runs, _ = image(path.read_text())
    folder, constraints, extras = install(runs)
    packed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *ROOMS, RECIPES}
    assert {folder / name for name in packed} <= files.keys()
    assert files[constraints] == "constraints.txt"
    for requirement in requirements(extras):
        assert PINS[requirement.name.lower()] in requirement.specifier, requirement


@each_image
def test_python_imports_what_was_installed_where_the_image_starts(path):
    """`python -m` looks there first, and sources that were copied have no compiled modules."""
    _, _, files, _, folder = image(path.read_text())
    assert [name for name in sorted(ROOMS) if folder / name in files] == []


def test_the_worker_has_versions_that_the_package_takes():
    base, values, _, runs, _ = image(WORKER.read_text())
    python, beam = values["PYTHON_VERSION"], values["BEAM_VERSION"]
    assert base == f"apache/beam_python{python}_sdk:{beam}"
    assert Version(python) in SpecifierSet(PROJECT["requires-python"])
    assert f"(Python {python}," in (ROOT / "constraints.txt").read_text().splitlines()[0]
    assert beam == PINS["apache-beam"]
    assert install(runs)[2] == [], "torch and deepspeed belong to the trainer"


def test_the_trainer_starts_in_its_environment_beside_the_recipes():
    _, values, files, runs, folder = image(TRAINER.read_text())
    assert values["PATH"].startswith(f"{values['VIRTUAL_ENV']}/bin:")
    assert f"python3 -m venv {values['VIRTUAL_ENV']}" in runs[0][0]
    assert install(runs)[2] == ["trainer"]
    assert files[folder / "configs"] == "configs"


@pytest.mark.processes
def test_what_a_checkout_makes_for_itself_is_not_copied():
    """Git ignores it, and of git's files none is left out."""
    patterns = ignored_names()
    assert patterns == ["__pycache__", "*.so", "*.pyd"]
    parts = {PurePosixPath(part) for file in files_of_git() for part in Path(file).parts}
    assert [part for part in sorted(parts) if any(map(part.match, patterns))] == []
