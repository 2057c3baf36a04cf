"""What programs of scripts/ share: the checkout they are of, flags, and results of soaks."""

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
    """The checkout's commit; outside one what BEAMBERT_COMMIT says, or an empty string."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # a machine without git
        found = ""
    return found or os.environ.get("BEAMBERT_COMMIT", "").strip()


def make_parser(documentation: str | None, **settings: Any) -> argparse.ArgumentParser:
    """A parser whose description is the first line of a module's docstring."""
    first = (documentation or "").split("\n", maxsplit=1)[0]
    return argparse.ArgumentParser(allow_abbrev=False, description=first, **settings)


def describe_soak(name: str) -> dict[str, Any]:
    """Where a soak runs."""
    facts = {"commit": commit(), "python": platform.python_version(), "cores": os.cpu_count()}
    return {"soak": name} | facts


def write_results(
    path: Path | None, result: dict[str, Any], name: str, rows: Sequence[dict[str, Any]]
) -> None:
    """JSON of a result and of its rows, a line each; nothing without a path."""
    if path:
        lines = ",\n".join(map(json.dumps, rows))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"result": {json.dumps(result, indent=1)},\n"{name}": [\n{lines}\n]}}\n')
