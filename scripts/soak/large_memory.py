"""BERT-LARGE on two CPU ranks in 24 GB, killed and continued: what the plan says of it, and the same end to the bit.

    python -m scripts.soak.large_memory --output scripts/soak/results/DATE-large-memory.json

One run makes all steps; another is killed, both ranks by SIGKILL, as soon as its first checkpoint
is committed, and the same command continues it. The last checkpoints must be equal byte for byte,
no rank may have taken 15 % more or less than `trainer plan` says, all ranks together no more than
`--limit_gb`, and the newest checkpoint must export. Prints one JSON line. Takes about five minutes
on 2 free cores; `--model tiny` shows in two minutes that it works.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.bench.memory import Case, log_of, plan, start_ranks, wait_for_ranks, write_data
from scripts.checkout import ROOT, commit

RANKS, DEADLINE_SECONDS, POLL_SECONDS = 2, 3_600.0, 0.05
LARGEST_ERROR = 0.15


def main() -> int:
    """Runs both and compares; exit code 1 where something is wrong."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", default="large")
    parser.add_argument("--zero_stage", type=int, default=2, choices=(0, 1, 2))
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "lamb"))
    parser.add_argument("--micro_tokens", type=int, default=256)
    parser.add_argument("--limit_gb", type=float, default=24.0)
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    own = parser.parse_args()
    case = Case(own.model, own.zero_stage, RANKS, own.optimizer, own.micro_tokens)
    with tempfile.TemporaryDirectory(prefix="beambert-large-") as name:
        result = run(case, Path(name), own.limit_gb)
    print(json.dumps(result))
    if own.output:
        own.output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["findings"] else 0


def run(case: Case, folder: Path, limit_gb: float) -> dict[str, Any]:
    """The undisturbed run, the killed one, the export, and what is wrong with them."""
    data = write_data(folder / "data")
    planned = plan(case, data, "cpu").total
    peaks = wait_for_ranks(
        start_ranks(config := configure(case, data, folder / "undisturbed"), RANKS, "cpu"), config
    )
    disturbed = folder / "disturbed"
    config = configure(case, data, disturbed)
    step = kill_after_checkpoint(config, disturbed)
    resumed = wait_for_ranks(start_ranks(config, RANKS, "cpu"), config)
    export_bytes = export(disturbed, folder / "exported")
    findings = []
    if marker(disturbed) != marker(folder / "undisturbed"):
        findings.append("the last checkpoint differs from that of the undisturbed run")
    if abs(planned / max(peaks) - 1) > LARGEST_ERROR:
        findings.append(f"planned {planned / 1e9:.2f} GB, measured {max(peaks) / 1e9:.2f}")
    if max(sum(peaks), sum(resumed)) > limit_gb * 1e9:
        findings.append(f"the ranks took more than {limit_gb} GB together")
    return {
        "soak": "large_memory",
        "commit": commit(),
        "case": vars(case),
        "killed_after_step": step,
        "planned_gb": round(planned / 1e9, 3),
        "measured_gb": [round(each / 1e9, 3) for each in peaks],
        "continued_gb": [round(each / 1e9, 3) for each in resumed],
        "export_gb": round(export_bytes / 1e9, 3),
        "findings": findings,
    }


def configure(case: Case, data: Path, output: Path) -> Path:
    """The configuration file of a run."""
    config = output.with_suffix(".json")
    config.write_text(json.dumps({**case.settings(), "data": [str(data)], "output": str(output)}))
    return config


def kill_after_checkpoint(config: Path, output: Path) -> int:
    """Starts the ranks and kills them when the first checkpoint is committed; its step.

    Raises:
        RuntimeError: None came, or the run ended before.
    """
    processes = start_ranks(config, RANKS, "cpu")
    until = time.monotonic() + DEADLINE_SECONDS
    try:
        while not (found := list(output.glob("checkpoints/step-????????/COMMITTED"))):
            if time.monotonic() > until or any(each.poll() is not None for each in processes):
                raise RuntimeError(
                    f"no checkpoint: {log_of(config, 0).read_text(errors='replace')[-2000:]}"
                )
            time.sleep(POLL_SECONDS)
    finally:
        for each in processes:
            each.send_signal(signal.SIGKILL)
            each.wait()
    return int(found[0].parent.name.removeprefix("step-"))


def export(run_folder: Path, output: Path) -> int:
    """Exports the newest checkpoint; resident bytes of that at its peak."""
    command = [sys.executable, "-m", "trainer", "export", str(run_folder), "--output", str(output)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the export of {run_folder} failed")
    return usage.ru_maxrss * 1024


def marker(output: Path) -> dict[str, Any]:
    """Sizes and hashes of the newest checkpoint's files."""
    newest = max(output.glob("checkpoints/step-????????/COMMITTED"))
    return dict(json.loads(newest.read_bytes())["files"])


if __name__ == "__main__":
    sys.exit(main())
