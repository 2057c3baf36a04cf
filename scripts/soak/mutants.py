"""Changes the program in small ways and counts how many of the changes the tests notice.

    python -m scripts.soak.mutants --sample 200 --output scripts/soak/results/DATE-mutants.json

A mutant is one change of one module (scripts/soak/mutations.py). It is killed when one of the
module's tests fails (scripts/soak/mutant_targets.py), and survives when all pass; survivors are
printed. Tests run in a copy of the checkout, each mutant in a fork of a process that has the large
libraries loaded already.
"""

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from scripts.checkout import ROOT, commit
from scripts.soak.mutant_targets import EQUIVALENT, MEANT, TARGETS, Meant
from scripts.soak.mutations import Mutant, find_mutants, mutate, sample

_LIBRARIES = (
    "numpy",
    "pyarrow.parquet",
    "fsspec",
    "tokenizers",
    "torch",
    "apache_beam",
    "deepspeed",
)
_BUILD = "from setuptools import setup; setup()"
_WARNINGS = (
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)  # of plugins that are loaded already
_BROKEN = 70
_PATIENCE = 5.0
"""How many times the undisturbed tests' seconds a mutant may take; one that hangs is noticed."""


@dataclass(frozen=True)
class Trial:
    """A changed file to be held against tests."""

    path: str
    name: str
    text: str


def main() -> int:
    """Runs the mutants; 1 where one that somebody meant survives."""
    own = _parse()
    for library in _LIBRARIES:
        importlib.import_module(library)
    targets = {
        path: tests
        for path, tests in TARGETS.items()
        if any(each in path for each in own.only or [path])
    }
    with tempfile.TemporaryDirectory(prefix="beambert-mutants-") as folder:
        checkout = Checkout(Path(folder))
        trials = choose_trials(targets, own.sample, own.seed)
        used = dict.fromkeys(targets[trial.path] for trial in trials)
        seconds = {
            tests: checkout.time_tests(tests)
            for tests in tqdm(used, desc="tests alone", disable=None)
        }
        results = []
        for trial in tqdm(trials, unit="mutant", disable=None):
            tests = targets[trial.path]
            killed = checkout.kills(trial, tests, 60 + _PATIENCE * seconds[tests])
            results.append((trial, killed))
            if not killed:
                tqdm.write(f"survived: {trial.name}")
            found = {
                "commit": commit(),
                "seed": own.seed,
                "drawn": len(trials),
                **summarize(results),
            }
            if own.output:  # at once: a run takes hours, and what was tried is known
                own.output.write_text(json.dumps(found, indent=1) + "\n")
    print(format_scores(found["modules"]))
    meant = {each.why for each in MEANT}
    return int(any(name in meant for name in found["survivors"]))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--sample", type=int, default=200, help="mutants drawn, besides those somebody meant"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--only", nargs="+", help="parts of the paths of the modules to be changed")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    return parser.parse_args()


def choose_trials(targets: Mapping[str, Sequence[str]], count: int, seed: int) -> list[Trial]:
    """The meant changes and a sample of all others that are not known to be equivalent; by module."""
    sources = {path: (ROOT / path).read_text() for path in targets if path.endswith(".py")}
    mutants = [each for path, source in sources.items() for each in find_mutants(path, source)]
    drawn = sample([each for each in mutants if each.name not in EQUIVALENT], count, seed)
    trials = [_meant_trial(each) for each in MEANT if each.path in targets]
    trials += [Trial(each.path, _told(each), mutate(sources[each.path], each)) for each in drawn]
    return sorted(trials, key=lambda trial: trial.path)


def _told(mutant: Mutant) -> str:
    return f"{mutant.name} (line {mutant.line})"


def _meant_trial(meant: Meant) -> Trial:
    source = (ROOT / meant.path).read_text()
    if source.count(meant.old) != 1:
        raise ValueError(
            f"{meant.path} holds {source.count(meant.old)} times, not once: {meant.old!r}"
        )
    return Trial(meant.path, meant.why, source.replace(meant.old, meant.new))


class Checkout:
    """A copy of the checkout, compiled modules included, in which tests run."""

    def __init__(self, folder: Path) -> None:
        """Copies what git tracks, and what was compiled."""
        self._root, self._log = folder / "checkout", folder / "pytest.log"
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        compiled = [
            str(path.relative_to(ROOT)) for path in ROOT.rglob("*.so") if not path.is_symlink()
        ]
        for name in [*filter(None, listed.stdout.split("\0")), *compiled]:
            target = self._root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        for name in compiled:
            (self._root / name).touch()  # not older than the sources

    def time_tests(self, tests: Sequence[str]) -> float:
        """Seconds of the tests without a change.

        Raises:
            RuntimeError: They do not pass.
        """
        began = time.monotonic()
        if (code := self._run(tests, 3_600.0)) != 0:
            said = self._log.read_text(errors="replace")[-3_000:]
            raise RuntimeError(
                f"{' '.join(tests)} end with {code} without any change: mend them first\n{said}"
            )
        return time.monotonic() - began

    def kills(self, trial: Trial, tests: Sequence[str], limit: float) -> bool:
        """Whether the tests notice a change; one that makes them hang is noticed too."""
        path = self._root / trial.path
        before = path.read_text()
        path.write_text(trial.text)
        self._rebuild(trial.path)
        try:
            return self._run(tests, limit) != 0
        finally:
            path.write_text(before)
            self._rebuild(trial.path)

    def _rebuild(self, path: str) -> None:
        if path.endswith(".c"):
            command = [sys.executable, "-c", _BUILD, "build_ext", "--inplace", "--force"]
            subprocess.run(command, cwd=self._root, capture_output=True, check=True)

    def _run(self, tests: Sequence[str], limit: float) -> int:
        """Exit code of pytest in a fork of this process; -9 where it took too long."""
        child = os.fork()
        if child == 0:
            code = _BROKEN
            with contextlib.suppress(
                BaseException
            ):  # what leaves this frame would clean up the parent's folder
                code = self._be_pytest(tests)
            os._exit(code)
        end = time.monotonic() + limit
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return -signal.SIGKILL

    def _be_pytest(self, tests: Sequence[str]) -> int:
        os.setsid()
        os.chdir(self._root)
        log = os.open(self._log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for descriptor in range(3):
            os.dup2(log, descriptor)
        os.environ |= {"PYTHONPATH": str(self._root), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:] = [str(self._root), *(each for each in sys.path if each not in ("", str(ROOT)))]
        for name in [each for each in sys.modules if each.partition(".")[0] == "scripts"]:
            del sys.modules[name]
        files = [f"tests/{each}" for each in tests]
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *_WARNINGS, *files]))


def summarize(results: Sequence[tuple[Trial, bool]]) -> dict[str, Any]:
    """Killed and tried by module, and the names of the survivors."""
    tried = Counter(trial.path for trial, _ in results)
    killed = Counter(trial.path for trial, is_killed in results if is_killed)
    return {
        "tried": len(results),
        "killed": killed.total(),
        "modules": {path: [killed[path], tried[path]] for path in sorted(tried)},
        "survivors": [trial.name for trial, is_killed in results if not is_killed],
    }


def format_scores(modules: Mapping[str, Sequence[int]]) -> str:
    """A line for each module and one for all."""
    total = [sum(column) for column in zip(*modules.values(), strict=True)]
    rows = [*modules.items(), ("all", total)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        f"{name:<{width}}  {killed:>4} of {tried:>4}  {killed / tried:6.1%}"
        for name, (killed, tried) in rows
    )


if __name__ == "__main__":
    sys.exit(main())
