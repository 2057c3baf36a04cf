"""Which of two equal paths is used: the compiled modules where there are any, or plain Python.

The Python path is the definition: a compiled module gives the same bytes, sooner. `pip install`
compiles the modules where there is a C compiler; in a checkout BUILD_COMMAND does. The environment
variable BEAMBERT_COMPILED says what to do: 0 leaves them alone, 1 refuses to go on without them,
and unset, they are used if they are there and not older than any C source of their room.
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
