"""What a person reads who runs a program before everything is installed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.storage.missing_packages import CORE, EXTRA_OF, describe_missing
from tests.datasets import write_corpus

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"apache_beam": "apache_beam", "pyyaml": "yaml"}
TINY = "--config configs/pretrain/bert-tiny.yaml"
PLAN = f"plan {TINY}"
NO_DRIVER = "s3://b/data: cannot be opened: "
WITHOUT = """
import sys
for name in {packages!r}:
    sys.modules[name] = None
sys.argv = [{program!r}, *{arguments!r}]
from {program}.cli import main
sys.exit(main())
"""


def run_without(packages, program, *arguments):
    code = WITHOUT.format(packages=packages, program=program, arguments=arguments)
    command, how = [sys.executable, "-c", code], {"capture_output": True, "text": True}
    return subprocess.run(command, cwd=ROOT, **how, check=False)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("package", "program", "line", "extras", "what"),
    [
        ("apache_beam", "pipeline", "build --input TEXTS --output OUT", "pipeline", ""),
        ("yaml", "pipeline", "build --input TEXTS --output OUT", "pipeline,trainer", ""),
        ("yaml", "trainer", PLAN, "pipeline,trainer", ""),
        ("torch", "trainer", "export DATA --output OUT", "trainer", ""),
        ("deepspeed", "trainer", f"pretrain {TINY} --data DATA --output OUT", "trainer", ""),
        ("s3fs", "pipeline", "verify s3://b/data", "pipeline,trainer", NO_DRIVER),
        ("s3fs", "trainer", f"{PLAN} --data s3://b/data", "pipeline,trainer", NO_DRIVER),
    ],
)
def test_a_missing_package_is_one_line_that_says_what_to_run(
    tmp_path, make_dataset, package, program, line, extras, what
):
    """What is given is there: it is looked at before a package is imported."""
    texts = write_corpus(tmp_path, 4) / "a.jsonl"
    places = {"TEXTS": texts, "OUT": tmp_path / "out"}
    if "DATA" in line:
        places["DATA"] = make_dataset(tmp_path / "data", ((4,),))
    command, *words = (str(places.get(word, word)) for word in line.split())
    ran = run_without([package], program, command, *words)
    assert ran.stderr == (
        f"python -m {program} {command}: error: {what}the package {package} is not installed here:"
        f" in the checkout run `. scripts/environment.sh`, or pip install -e '.[{extras}]'\n"
    )
    assert ran.returncode == 2


@pytest.mark.processes
@pytest.mark.parametrize("program", ["pipeline", "trainer"])
def test_the_list_of_commands_needs_no_package(program):
    ran = run_without([*CORE, *EXTRA_OF], program, "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"usage: python -m {program} COMMAND" in ran.stdout


def test_a_module_that_is_none_of_our_packages_is_not_explained_away():
    assert describe_missing(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    unknown = ImportError("cannot import name 'x' from 'torch'", name="torch")
    assert describe_missing(unknown) is None


def test_every_package_has_the_extra_that_pyproject_gives_it():
    """Distributions are spelled with hyphens, what they are imported as with underscores."""
    extras = {name: names(packages) for name, packages in PROJECT["optional-dependencies"].items()}
    named = ("pipeline", "tfrecord", "trainer")
    for package, its_extra in EXTRA_OF.items():
        assert [extra for extra in named if package in extras[extra]] == [its_extra]
    assert set(CORE) == names(PROJECT["dependencies"])


def names(requirements):
    names = (re.split(r"[\[<>=]", requirement)[0] for requirement in requirements)
    found = {name.lower().replace("-", "_") for name in names}
    return {IMPORTED_AS.get(name, name) for name in found}
