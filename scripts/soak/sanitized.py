"""Runs a fuzzer of compiled modules, made anew for gcc's sanitizers, in a process of its own.

-fsanitize=address,undefined: the first access outside memory, overflow or misaligned read ends that
process, and so counts as a finding.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from scripts.checkout import ROOT, describe_soak

Fuzzer = Callable[[Mapping[str, Any], float, int], dict[str, int]]


def run_sanitized(script: str, description: str, names: list[str], fuzz: Fuzzer) -> int:
    """Compiles modules with sanitizers, fuzzes them in a child process, and prints the result.

    Args:
        script: The `__file__` of the fuzzer.
        description: The docstring of the fuzzer, for its help.
        names: The names of its modules in pyproject.toml.
        fuzz: Fuzzes the modules for some seconds with a seed. It counts its calls, and raises an
            error if the modules differ from their definitions.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, description=description.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.child:
        modules = {name: _load(name, own.child / f"{name}.so") for name in names}
        print(json.dumps(fuzz(modules, own.seconds, own.seed)))
        return 0
    with tempfile.TemporaryDirectory(prefix="beambert-fuzz-") as folder:
        for name in names:
            _compile(name, Path(folder, f"{name}.so"))
        flags = f"--seconds {own.seconds} --seed {own.seed} --child {folder}"
        command = [sys.executable, script, *flags.split()]
        libraries = " ".join(
            _ask_compiler(f"-print-file-name=lib{name}.so") for name in ("asan", "ubsan", "stdc++")
        )
        environment = os.environ | {"LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0"}
        # Python's own allocator would hide what lies beside an object.
        environment |= {"PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    calls = json.loads(done.stdout) if done.returncode == 0 else {}
    result = describe_soak(Path(script).stem) | {"seconds": own.seconds, "seed": own.seed}
    result |= {"findings": int(done.returncode != 0), "calls": calls}
    print(json.dumps(result))
    if own.output:
        own.output.write_text(json.dumps(result) + "\n")
    return done.returncode


def _compile(name: str, path: Path) -> None:
    """Compiles a module with its sources and flags of pyproject.toml, and with the sanitizers."""
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "ext-modules"
    ]
    (module,) = (module for module in modules if module["name"] == name)
    flags = [
        *module["extra-compile-args"],
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
    ]
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        *flags,
        "-fno-sanitize-recover=all",
        include,
        *module["sources"],
    ]
    subprocess.run([*command, "-o", str(path)], cwd=ROOT, check=True)


def _load(name: str, path: Path) -> Any:
    spec = spec_from_file_location(name, loader=ExtensionFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ask_compiler(flag: str) -> str:
    return subprocess.run(["gcc", flag], capture_output=True, text=True, check=True).stdout.strip()
