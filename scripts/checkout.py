"""Holds what the programs of scripts/ share: their checkout, flags, and results of soaks."""

import argparse
import json
import os
import platform
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """Returns the commit of the checkout, in its short form.

    Outside of a checkout it is the value of BEAMBERT_COMMIT, or an empty string.
    """
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # a machine without git
        found = ""
    return found or os.environ.get("BEAMBERT_COMMIT", "").strip()


def make_parser(documentation: str | None, **settings: Any) -> argparse.ArgumentParser:
    """Returns a parser whose description is the first line of a module's docstring."""
    first = (documentation or "").split("\n", maxsplit=1)[0]
    return argparse.ArgumentParser(allow_abbrev=False, description=first, **settings)


def exit_on_signals() -> None:
    """Makes SIGTERM and SIGINT end this program by SystemExit, with exit code 128 + the signal.

    The `with` and `finally` blocks that are open then end the processes that they started. Without
    this, SIGTERM ends the program without them, and SIGINT does nothing to a program that a shell
    started in the background.
    """
    for number in _SIGNALS:
        signal.signal(number, _exit)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _exit(number: int, _: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one would interrupt the blocks that clean up
    raise SystemExit(128 + number)


def describe_soak(name: str) -> dict[str, Any]:
    """Returns facts about a soak: its name, the commit, Python's version, the number of cores."""
    facts = {"commit": commit(), "python": platform.python_version(), "cores": os.cpu_count()}
    return {"soak": name} | facts


def write_results(
    path: Path | None, result: dict[str, Any], name: str, rows: Sequence[dict[str, Any]]
) -> None:
    """Writes a result and its rows as JSON, with one line per row; nothing if there is no path."""
    if path:
        lines = ",\n".join(map(json.dumps, rows))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"result": {json.dumps(result, indent=1)},\n"{name}": [\n{lines}\n]}}\n')
