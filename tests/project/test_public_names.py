"""Pages use the public names of our packages alone, and importing a package is cheap."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipeline", "trainer", "tokenizer")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
HEAVY = "apache_beam deepspeed numpy pyarrow tokenizers torch webdataset"


def public_names():
    for package in PACKAGES:
        for name in importlib.import_module(package).__all__:
            yield f"{package}.{name}"


def programs(path):
    """The Python programs that a page or notebook shows."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text())["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return [source for source in sources if not source.startswith(("!", "%"))]  # shell, magic
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def imported_names(program):
    """The names that a program imports from our packages, each with its module."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in PACKAGES:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name for name in names if name.split(".")[0] in PACKAGES)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.name)
def test_pages_import_public_names_alone(page):
    if page.name == "architecture.md":
        return  # its examples are changes of the packages themselves
    used = {name for program in programs(page) for name in imported_names(program)}
    assert used <= {*public_names()}


def test_the_pages_that_use_names_are_seen():
    used = [
        name for page in PAGES for program in programs(page) for name in imported_names(program)
    ]
    assert len({*used}) > 15


def test_the_reference_has_every_public_name_once():
    listed = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(public_names())


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_read_the_same_names(package):
    stub = ast.parse((ROOT / package / "__init__.pyi").read_text())
    imported = {
        alias.asname: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == importlib.import_module(package)._MODULES


@pytest.mark.parametrize("name", [*public_names()])
def test_a_public_name_is_documented(name):
    package, _, attribute = name.partition(".")
    thing = getattr(importlib.import_module(package), attribute)
    assert inspect.getdoc(thing), name
    parameters = [*inspect.signature(thing).parameters] if inspect.isfunction(thing) else []
    if len(parameters) > 1:
        section = inspect.getdoc(thing).partition("Args:\n")[2]
        missing = [
            parameter
            for parameter in parameters
            if not re.search(rf"^ +\**{parameter}: ", section, re.MULTILINE)
        ]
        assert not missing, f"{name} does not explain {missing}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_public_is_refused(package):
    module = importlib.import_module(package)
    assert {*module.__all__} <= {*dir(module)}
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


@pytest.mark.processes
@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_nothing_heavy(package):
    code = f"import {package}, sys; print(*({{*{HEAVY.split()}}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    assert ran.stdout.split() == []
