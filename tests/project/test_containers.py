"""The two Dockerfiles, read instruction by instruction as Docker would run them; no Docker is needed.

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


class Install(NamedTuple):
    """What `pip install` is given, and the folder it runs in."""

    words: list[str]
    folder: PurePosixPath

    def constraints(self):
        return self.folder / self.words[self.words.index("--constraint") + 1]

    def extras(self):
        """The names in the brackets of the one thing that is installed, this project."""
        [wanted] = [word for word in self.words if word.startswith(".")]
        return re.findall(r"[\w-]+", wanted)


class Image(NamedTuple):
    """The base, the variables, what lies where, every RUN with its folder, and the folder in which
    the image starts.
    """

    base: str
    values: dict[str, str]
    files: dict[PurePosixPath, str]
    runs: list[tuple[str, PurePosixPath]]
    folder: PurePosixPath


def image(text):
    done = list(steps(text))
    files = {
        place: source
        for step in done
        if step.name == "COPY"
        for place, source in step.copied().items()
    }
    [base] = [step.arguments for step in done if step.name == "FROM"]
    runs = [(step.arguments, step.folder) for step in done if step.name == "RUN"]
    return Image(base, done[-1].values, files, runs, done[-1].folder)


def installs(runs):
    """Every `pip install` of the image."""
    for command, folder in runs:
        for part in re.split(r"&&|;", command):
            words = shlex.split(part)
            if words[:2] == ["pip", "install"]:
                yield Install(words[2:], folder)


def requirements(extras):
    """Of the core and of extras, with those of the extras that an extra names."""
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in EXTRAS[extra])]
    for requirement in map(Requirement, wanted):
        if requirement.name == PROJECT["name"]:
            yield from requirements(requirement.extras)
        else:
            yield requirement


def test_lines_are_joined_and_files_placed():
    text = "ARG V=3\nFROM a:${V}\nWORKDIR /src\nCOPY x/one two ./\nCOPY b c\nRUN p \\\n    && q\nWORKDIR /\n"
    files = {
        PurePosixPath("/src/one"): "x/one",
        PurePosixPath("/src/two"): "two",
        PurePosixPath("/src/c"): "b",
    }
    source = PurePosixPath("/src")
    assert image(text) == ("a:3", {"V": "3"}, files, [("p && q", source)], PurePosixPath("/"))


@pytest.mark.processes
@each_image
def test_sources_of_copy_are_in_git(path):
    sources = set(image(path.read_text())[2].values())
    listed = subprocess.run(
        ["git", "ls-files", *sources], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    kept = listed.stdout.splitlines()
    missing = [
        each
        for each in sources
        if not any(file == each or file.startswith(f"{each}/") for file in kept)
    ]
    assert missing == []


@pytest.mark.processes
@each_image
def test_commands_are_shell(path):
    for command, _ in image(path.read_text())[3]:
        subprocess.run(["sh", "-n"], input=command, text=True, check=True)


@each_image
def test_pip_finds_all_that_it_packs(path):
    _, _, files, runs, _ = image(path.read_text())
    [install] = installs(runs)
    packed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *ROOMS, RECIPES}
    assert {install.folder / name for name in packed} <= files.keys()
    assert files[install.constraints()] == "constraints.txt"
    assert set(install.extras()) <= EXTRAS.keys()


@each_image
def test_pins_fit_what_is_installed(path):
    [install] = installs(image(path.read_text())[3])
    for requirement in requirements(install.extras()):
        assert PINS[requirement.name.lower()] in requirement.specifier, requirement


@each_image
def test_python_imports_what_was_installed_where_the_image_starts(path):
    """`python -m` looks in the current folder first, and sources that were copied have no compiled
    modules.
    """
    _, _, files, _, folder = image(path.read_text())
    assert [name for name in sorted(ROOMS) if folder / name in files] == []


def test_the_worker_has_versions_that_the_package_takes():
    base, values, _, runs, _ = image(WORKER.read_text())
    python, beam = values["PYTHON_VERSION"], values["BEAM_VERSION"]
    assert base == f"apache/beam_python{python}_sdk:{beam}"
    assert Version(python) in SpecifierSet(PROJECT["requires-python"])
    assert f"(Python {python}," in (ROOT / "constraints.txt").read_text().splitlines()[0]
    assert beam == PINS["apache-beam"]
    assert next(installs(runs)).extras() == [], "torch and deepspeed belong to the trainer"


def test_the_trainer_starts_in_its_environment_beside_the_recipes():
    _, values, files, runs, folder = image(TRAINER.read_text())
    assert values["PATH"].startswith(f"{values['VIRTUAL_ENV']}/bin:")
    assert f"python3 -m venv {values['VIRTUAL_ENV']}" in runs[0][0]
    assert next(installs(runs)).extras() == ["trainer"]
    assert files[folder / "configs"] == "configs"


@pytest.mark.processes
def test_what_a_checkout_makes_for_itself_is_not_copied():
    """Git ignores it, and of git's files none is left out."""
    patterns = ignored_names()
    assert patterns == ["__pycache__", "*.so", "*.pyd"]
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    parts = {part for line in listed.stdout.splitlines() for part in PurePosixPath(line).parts}
    assert [
        part
        for part in sorted(parts)
        if any(PurePosixPath(part).match(pattern) for pattern in patterns)
    ] == []
