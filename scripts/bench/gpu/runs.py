"""Whole training runs as a person starts them, and what they wrote down. Imports PyYAML beside the stdlib.

Each run is `python -m trainer pretrain` in a process of its own, on a GPU or, with the GPU hidden,
on the CPU.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
POLL_SECONDS = 0.05


def write_config(path: Path, base: str | None, **changed: Any) -> Path:
    """A run's settings: those of configs/pretrain/BASE, with what is changed.

    Args:
        path: Of the file.
        base: Name of a recipe without .yaml; None begins with the defaults.
        changed: Keys and values in their place.
    """
    recipe = ROOT / "configs" / "pretrain" / f"{base}.yaml"
    settings = yaml.safe_load(recipe.read_text(encoding="utf-8")) if base else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml.safe_dump({**settings, "tensorboard": False, **changed}, sort_keys=False),
        encoding="utf-8",
    )
    return path


def start(config: Path, output: Path, device: str, *flags: str) -> subprocess.Popen[bytes]:
    """Starts or continues a run; what it prints goes to OUTPUT.log beside its folder."""
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    command = [
        sys.executable,
        "-m",
        "trainer",
        "pretrain",
        "--config",
        str(config),
        "--output",
        str(output),
        *flags,
    ]
    with output.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )


def finish(run: subprocess.Popen[bytes], output: Path, seconds: float) -> None:
    """Waits for a run's end.

    Raises:
        RuntimeError: It failed, or took longer; holds the end of what it printed.
    """
    try:
        code: int | str = run.wait(seconds)
    except subprocess.TimeoutExpired:
        run.kill()
        run.wait()
        code = f"nothing after {seconds:.0f} s"
    if code != 0:
        tail = output.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-1_500:]
        raise RuntimeError(f"the run in {output} ended with {code}: {tail}")


def kill_after(run: subprocess.Popen[bytes], output: Path, step: int, seconds: float) -> int:
    """Kills a run as soon as it has logged a step; the last step that it had logged.

    Raises:
        RuntimeError: It ended, or logged too little in that time.
    """
    deadline = time.monotonic() + seconds
    while run.poll() is None and time.monotonic() < deadline:
        if (last := max((row["step"] for row in rows_of(output)), default=0)) >= step:
            run.kill()
            run.wait()
            return int(last)
        time.sleep(POLL_SECONDS)
    run.kill()
    raise RuntimeError(
        f"the run in {output} was to be killed at step {step} and had ended, or was too slow"
    )


def rows_of(output: Path, split: str = "train") -> list[dict[str, Any]]:
    """Rows of metrics.jsonl of one split, whole ones."""
    path = output / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row for row in rows if row["split"] == split]


def column(rows: list[dict[str, Any]], name: str) -> list[float]:
    """One column."""
    return [float(row[name]) for row in rows]


def thin(
    rows: list[dict[str, Any]], names: Mapping[str, int], most: int = 120
) -> list[dict[str, float]]:
    """At most so many rows, evenly spaced and with the last one; each name rounded to so many digits."""
    kept = rows[:: max(1, -(-len(rows) // most))]
    kept += rows[-1:] if rows and kept[-1] is not rows[-1] else []
    return [
        {name: round(row[name], digits) for name, digits in names.items() if name in row}
        for row in kept
    ]
