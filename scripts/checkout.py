"""Holds what the programs of scripts/ share: their checkout, flags, and results of soaks."""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
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
