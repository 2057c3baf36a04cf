"""The Dockerfiles name files, extras, pins and versions that are there.

tests/stores/test_worker_package.py runs the worker's one command.
"""

import re
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from scripts.clusters.page import read_block

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PINS = dict(
    re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text().lower(), re.MULTILINE)
)
WORKER, TRAINER = (
    (ROOT / f"scripts/docker/{name}.Dockerfile").read_text()
    for name in ("beam-worker", "trainer-gpu")
)
# pipeline/command_line/recipes is a link to configs, which leads nowhere where that is not copied
PACKED = ["pyproject.toml", "README.md", "LICENSE", "constraints.txt"]
PACKED += ["configs", "pipeline", "tokenizer", "trainer"]


def requirements(extras):
    """Of the core and of extras, with those of the extras that an extra names."""
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in EXTRAS[extra])]
    for requirement in map(Requirement, wanted):
        if requirement.name == PROJECT["name"]:
            yield from requirements(requirement.extras)
        else:
            yield requirement


@pytest.mark.parametrize(("text", "extras"), [(WORKER, []), (TRAINER, ["trainer"])])
def test_pip_finds_all_that_it_packs(text, extras):
    before, after = text.split("\nRUN pip install ")
    copied = re.findall(r"^COPY (.+) \S+$", before, re.MULTILINE)
    assert " ".join(copied).split() == PACKED
    tracked = {path.split("/")[0] for path in files_of_git()}
    assert tracked >= {*PACKED, PROJECT["readme"], *PROJECT["license-files"]}
    what = f"'.[{','.join(extras)}]'" if extras else "."
    assert after.splitlines()[0].endswith(f"--constraint constraints.txt {what}")
    for requirement in requirements(extras):
        assert PINS[requirement.name.lower()] in requirement.specifier, requirement
    # `python -m` looks first where it starts, and sources that were copied have no compiled modules.
    first, *_, last = re.findall(r"^WORKDIR (.+)$", text, re.MULTILINE)
    assert first != last


def files_of_git():
    command = ["git", "ls-files"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    return listed.stdout.splitlines()


def test_the_worker_has_versions_that_the_package_takes():
    python, beam = re.findall(r"^ARG \w+_VERSION=(.+)$", WORKER, re.MULTILINE)
    assert "\nFROM apache/beam_python${PYTHON_VERSION}_sdk:${BEAM_VERSION}\n" in WORKER
    assert Version(python) in SpecifierSet(PROJECT["requires-python"])
    assert f"(Python {python}," in (ROOT / "constraints.txt").read_text().splitlines()[0]
    assert beam == PINS["apache-beam"]


def test_workers_return_freed_memory_in_the_image_and_in_the_pool_of_the_page():
    """Both give glibc the same threshold. The worker pools of tests and benchmarks run the page's."""
    [threshold] = re.findall(r"^ENV (MALLOC_TRIM_THRESHOLD_=\d+)$", WORKER, re.MULTILINE)
    assert threshold in read_block("Flink", "worker_pool_main").split()


def test_the_trainer_starts_in_its_environment_beside_the_recipes():
    assert " VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH\n" in TRAINER
    assert "python3 -m venv /opt/venv\n" in TRAINER
    assert TRAINER.endswith("\nCOPY configs configs\n")


def test_what_is_made_of_the_worker_image_copies_what_is_there():
    """The launcher and the Flex Template bring no sources, which would hide what is installed."""
    tracked = set(files_of_git())
    for name in ("launcher", "flex-template"):
        text = (ROOT / f"scripts/docker/{name}.Dockerfile").read_text()
        assert "\nARG WORKER=beambert-worker:1\n" in text, name
        assert "\nFROM ${WORKER}\n" in text, name
        copied = re.findall(r"^COPY (?!--from)(\S+) \S+$", text, re.MULTILINE)
        assert copied, name
        for path in copied:
            assert path in tracked or any(file.startswith(f"{path}/") for file in tracked), path
        assert not {"pipeline", "tokenizer", "trainer", "."} & set(copied), name
    launcher = (ROOT / "scripts/docker/launcher.Dockerfile").read_text()
    [program] = re.findall(r'^ENTRYPOINT \["/launcher/(.+)"\]$', launcher, re.MULTILINE)
    assert (ROOT / program).stat().st_mode & 0o111, "the launcher's program is executable"


def test_what_a_checkout_makes_for_itself_is_not_copied():
    """Git ignores it, and of git's files none is left out."""
    patterns = re.findall(r"^\*\*/(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert patterns == ["__pycache__", "*.so", "*.pyd"]
    parts = {PurePosixPath(part) for file in files_of_git() for part in Path(file).parts}
    assert [part for part in sorted(parts) if any(map(part.match, patterns))] == []
