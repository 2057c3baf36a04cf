"""Loads compiled modules, unless plain Python is to be used in their place.

Every compiled module has a counterpart in Python, which defines what it has to return. The compiled
module gives the same bytes in less time. `pip install` builds these modules; in a checkout the
command in BUILD_COMMAND does. The environment variable BEAMBERT_COMPILED says whether they are
used:

- `0`: never.
- `1`: always; it is an error if they cannot be used.
- unset: if they are built, and not older than their C sources.
"""

import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType

VARIABLE = "BEAMBERT_COMPILED"
BUILD_COMMAND = 'python -c "from setuptools import setup; setup()" build_ext --inplace --force'


def load(name: str) -> ModuleType | None:
    """Returns a compiled module, or None if plain Python is to be used.

    Args:
        name: The dotted name of the module.

    Raises:
        ImportError: BEAMBERT_COMPILED is 1, and the module cannot be used.
        ValueError: BEAMBERT_COMPILED has another value than 0 and 1.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "0", "1"):
        expected = "expected 0 (plain Python), 1 (compiled modules are required) or unset"
        raise ValueError(f"{VARIABLE}={choice}: {expected}")
    if choice == "0":
        return None
    problem = _find_problem(name)
    if not problem:
        return importlib.import_module(name)
    if choice == "1":
        raise ImportError(f"{VARIABLE}=1, but {name} {problem}; build it with: {BUILD_COMMAND}")
    return None


def _find_problem(name: str) -> str:
    """Returns why a compiled module cannot be used, or an empty text if it can.

    A module that is older than one of the C sources beside it cannot be used. Only a checkout has
    these sources, so the age of an installed module does not matter.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return "is not built"
    module = Path(spec.origin)
    for source in sorted(module.parent.rglob("*.[ch]")):
        if source.stat().st_mtime_ns > module.stat().st_mtime_ns:
            return f"({module}) is older than {source.name}"
    return ""
