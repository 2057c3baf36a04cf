"""Facts of a launch, which run.json keeps: when, where, with which software and arguments."""

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
    """When, where, with which software and arguments the run was started."""
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
    """Installed versions by name; None for what is not installed."""
    found: dict[str, str | None] = dict.fromkeys(distributions)
    for name in distributions:
        for each in importlib.metadata.distributions(name=name):
            found[name] = found[name] or each.version
    return found


def _git_commit() -> str | None:
    """The commit of this source tree, "+changes" if files differ from it; None outside git."""
    source = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        return subprocess.check_output(
            ["git", *arguments], cwd=source, text=True, stderr=subprocess.DEVNULL
        ).strip()

    try:
        # An installed copy may lie inside somebody else's repository.
        if Path(git("rev-parse", "--show-toplevel")) != source:
            return None
        changes = "+changes" if git("status", "--porcelain") else ""
        return git("rev-parse", "HEAD") + changes
    except (OSError, subprocess.CalledProcessError):
        return None
