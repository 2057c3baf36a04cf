"""The result file of a benchmark on a GPU, renewed after every case, and what is printed of it."""

import json
import math
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from pipeline.storage.local import replace_file
from scripts.checkout import commit
from trainer.process.ranks import device_name

PACKAGES = ("torch", "triton", "deepspeed", "transformers", "numpy", "pyarrow", "tokenizers")
FOLDER = Path(__file__).resolve().parents[1] / "results"
CLOCKS = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "driver_version",
)


class ResultFile:
    """WHAT_HARDWARE_DATE.json, whole at any time: a run that is killed keeps what it had measured."""

    def __init__(self, what: str, device: torch.device, output: Path | None) -> None:
        """Writes nothing yet.

        Args:
            what: Was measured; the benchmark's name.
            device: It was measured on.
            output: The file, or the folder for it; scripts/bench/results without one.
        """
        now = datetime.now(UTC)
        hardware = re.sub(r"[^a-z0-9]+", "-", device_name(device).lower()).strip("-")
        folder = output or FOLDER
        self.path = (
            folder
            if folder.suffix == ".json"
            else folder / f"{what}_{hardware}_{now:%Y-%m-%d}.json"
        )
        self.content: dict[str, Any] = {
            "benchmark": what,
            "commit": commit(),
            "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "command": sys.argv[1:],
            "versions": versions(),
            "hardware": describe_hardware(device),
            "times_mean_something": device.type == "cuda",
            "complete": False,
        }

    def put(self, **found: Any) -> None:
        """Adds to the file and writes it."""
        self.content |= found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(finite(self.content), indent=1, allow_nan=False)
        replace_file(self.path, (text + "\n").encode())


def finite(value: Any) -> Any:
    """The same with numbers that JSON lacks as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def versions() -> dict[str, str | None]:
    """Of Python, the packages and CUDA; None for what is missing."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def describe_hardware(device: torch.device) -> dict[str, Any]:
    """The device, and on a GPU its size and its clocks now."""
    facts: dict[str, Any] = {"name": device_name(device), "machine": platform.machine()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "clocks_at_start": read_clocks(),
        }
    return facts


def read_clocks() -> dict[str, str]:
    """What nvidia-smi says now; nothing where there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader"]
    try:
        line = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=20
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    return dict(zip(CLOCKS, (each.strip() for each in line.split(",")), strict=False))


HEADER = f"{'case':62s} {'tok/s':>9s} {'MFU':>6s} {'fwd':>5s} {'bwd':>5s} {'opt':>5s} {'wait':>5s} {'GiB':>6s} graphs"


def format_row(row: Mapping[str, Any]) -> str:
    """A case on one line under HEADER."""
    name = row["name"].removesuffix(" ")[:62]
    for reason in ("not_run", "does_not_fit", "error"):
        if reason in row:
            return f"{name:62s} {reason.replace('_', ' ')}: {row[reason]}"
    share = row["share_of_step"]
    return (
        f"{name:62s} {row['real_tokens_per_second']['median']:9,.0f} {row['mfu']['median']:6.1%}"
        f" {share['forward']:5.1%} {share['backward']:5.1%} {share['optimizer']:5.1%} {share['data_wait']:5.1%}"
        f" {row['peak_memory_gib']:6.1f} {row['compiled_graphs']}"
    )


def compare(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The goals that the rows can answer: pairs of cases that differ in one thing, and bounds on single cases."""
    measured = [row for row in rows if "real_tokens_per_second" in row]
    found = []
    for base in measured:
        if base["case"]["system"] != "ours":
            continue
        for other in measured:
            changed = {name for name, value in other["case"].items() if value != base["case"][name]}
            ratio = (
                base["real_tokens_per_second"]["median"] / other["real_tokens_per_second"]["median"]
            )
            if other["case"]["system"] == "transformers" and changed <= {"system", "attention"}:
                found.append(_goal("ours over transformers", base, other, ratio, 2.0, ratio >= 2.0))
            if changed == {"system"} and other["case"]["system"] == "plain":
                found.append(
                    _goal("ours over the plain loop", base, other, ratio, 0.95, ratio >= 0.95)
                )
            if changed == {"optimizer"} and base["case"]["optimizer"] == "lamb":
                found.append(_goal("LAMB over AdamW", base, other, ratio, 0.95, ratio >= 0.95))
            if changed == {"fp8"} and base["case"]["fp8"]:
                found.append(_goal("FP8 over bf16", base, other, ratio, 1.25, ratio >= 1.25))
        wait, graphs, mfu = (
            base["share_of_step"]["data_wait"],
            base["compiled_graphs"],
            base["mfu"]["median"],
        )
        found.append(_goal("data wait", base, None, wait, 0.02, wait < 0.02))
        found.append(_goal("compiled graphs", base, None, graphs, 5, graphs <= 5))
        found.append(_goal("MFU", base, None, mfu, 0.5, mfu >= 0.5))
    return found


def _goal(
    what: str,
    base: Mapping[str, Any],
    other: Mapping[str, Any] | None,
    value: float,
    bound: float,
    is_met: bool,
) -> dict[str, Any]:
    pair = base["name"] if other is None else f"{base['name']} / {other['name']}"
    return {"goal": what, "cases": pair, "value": round(value, 4), "bound": bound, "met": is_met}
