"""Which checkout of this project a benchmark or a soak is of."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """The checkout's commit; outside one what BEAMBERT_COMMIT says, or an empty string."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # a machine without git
        found = ""
    return found or os.environ.get("BEAMBERT_COMMIT", "").strip()
