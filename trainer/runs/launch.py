"""Collects the facts of a launch for run.json: time, host, hardware, software and arguments."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.storage.secret_values import hide_in

SOFTWARE = ("beambert", "torch", "deepspeed", "numpy", "pyarrow", "safetensors", "tokenizers")


def launch_facts(world_size: int) -> dict[str, Any]:
    """Returns the entry of run.json about a launch of a run.

    It says when, where, with which software and with which arguments the run was launched.

    Args:
        world_size: Number of ranks.
    """
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": hide_in(sys.argv),
        "world_size": world_size,
        "host": platform.node(),
        "hardware": {"machine": platform.machine(), "cpus": os.cpu_count(), "gpus": gpus},
        "python": platform.python_version(),
        "software": software_versions(SOFTWARE),
        "git_commit": _git_commit(),
    }


def software_versions(distributions: Sequence[str]) -> dict[str, str | None]:
    """Returns the installed version of each distribution by name; None if it is not installed."""
    versions: dict[str, str | None] = dict.fromkeys(distributions)
    for name in distributions:
        for distribution in importlib.metadata.distributions(name=name):
            versions[name] = versions[name] or distribution.version
    return versions


def _git_commit() -> str | None:
    """Returns the commit of this source tree, with "+changes" if files differ from the commit.

    The result is None if the source tree is not the root of a git repository.
    """
    source = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.check_output(
            ["git", *arguments], cwd=source, text=True, stderr=subprocess.DEVNULL
        ).strip()

    try:
        # An installed copy may be inside another project's repository.
        if Path(git("rev-parse", "--show-toplevel")) != source:
            return None
        changes = "+changes" if git("status", "--porcelain") else ""
        return git("rev-parse", "HEAD") + changes
    except (OSError, subprocess.CalledProcessError):
        return None
