"""Which of two equal paths is used: the compiled modules where there are any, or plain Python.

The Python path is the definition: a compiled module gives the same bytes, sooner. `pip install`
builds the modules, in a checkout BUILD_COMMAND. With the environment variable BEAMBERT_COMPILED 0
leaves them alone, 1 refuses to go on without; else they are used if not older than their C sources.
"""

import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType

VARIABLE = "BEAMBERT_COMPILED"
BUILD_COMMAND = 'python -c "from setuptools import setup; setup()" build_ext --inplace --force'


def load(name: str) -> ModuleType | None:
    """The compiled module of this dotted name, or None where the Python path is to be used."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "0", "1"):
        expected = "expected 0 (plain Python), 1 (compiled modules are required) or unset"
        raise ValueError(f"{VARIABLE}={wanted}: {expected}")
    if wanted == "0":
        return None
    if not (problem := _find_problem(name)):
        return importlib.import_module(name)
    if wanted == "1":
        raise ImportError(f"{VARIABLE}=1, but {name} {problem}; build it with: {BUILD_COMMAND}")
    return None


def _find_problem(name: str) -> str:
    """Why a module cannot be used, if so; only in a checkout do C sources stand beside it."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return "is not built"
    module = Path(found.origin)
    for source in sorted(module.parent.rglob("*.[ch]")):
        if source.stat().st_mtime_ns > module.stat().st_mtime_ns:
            return f"({module}) is older than {source.name}"
    return ""
