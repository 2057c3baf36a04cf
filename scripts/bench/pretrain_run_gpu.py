"""A real run for as many minutes as there are, kept as a result with what it cost.

    python -m scripts.bench.pretrain_run_gpu --data DATASET --work FOLDER --preset small --minutes 8

Trains by the clock (`budget_hours`), exports, fills blanks; writes
pretrain_run_gpu_HARDWARE_DATE.json with the curve, every validation, NSP accuracy, samples and the
minutes of each part. DATASET has length 128 and a validation split. `--device cpu --preset tiny`
runs the same code on a CPU.
"""

import argparse
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from scripts.bench.gpu.result import ResultFile, read_clocks
from scripts.bench.gpu.runs import ROOT, finish, rows_of, start, thin, write_config

PEAK_LR = {"tiny": 1e-3, "small": 5e-4, "base": 3e-4, "large": 2e-4}
SCALE_STEPS = 10_000  # time decides; this is what shares and warm-up are counted in
SAMPLES = (
    "Paris is the [MASK] of France.",
    "The river flows into the [MASK].",
    "She opened the [MASK] and looked out.",
    "He was born in [MASK] and died in London.",
    "The war began in the [MASK] century.",
    "It is one of the [MASK] cities in the world.",
)
CURVE = {
    "step": 0,
    "tokens": 0,
    "loss": 4,
    "mlm_loss": 4,
    "mlm_accuracy": 4,
    "nsp_accuracy": 4,
    "learning_rate": 8,
}
VALIDATION = {
    "step": 0,
    "mlm_loss": 4,
    "mlm_accuracy": 4,
    "nsp_loss": 4,
    "nsp_accuracy": 4,
    "unigram_entropy": 4,
}


def main() -> int:
    """Trains, exports, asks."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the run and its export"
    )
    parser.add_argument("--preset", choices=tuple(PEAK_LR), default="small")
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help="of training; starting and the export come on top",
    )
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--micro_tokens", type=int, default=65_536)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--output", type=Path, help="file or folder of the result; scripts/bench/results without it"
    )
    options = parser.parse_args()
    result = ResultFile("pretrain_run_gpu", torch.device(options.device), options.output)
    run, export, minutes = options.work / "run", options.work / "hf", dict[str, float]()
    result.put(data=options.data, preset=options.preset, minutes_of_training=options.minutes)
    began = time.monotonic()
    finish(start(write_settings(options), run, options.device), run, 60 * (options.minutes + 5))
    minutes["training_with_start"] = minutes_since(began)
    rows, measured = rows_of(run), rows_of(run, "validation")
    result.put(
        steps=rows[-1]["step"],
        tokens=sum(row["tokens"] for row in rows),
        instances=sum(row["instances"] for row in rows),
        epochs=rows[-1]["epochs"],
        tokens_per_second_median=sorted(row["tokens_per_second"] for row in rows)[len(rows) // 2],
        curve=thin(rows, CURVE),
        validation=thin(measured, VALIDATION),
        cost_minutes=minutes,
    )
    began = time.monotonic()
    trainer("export", str(run), "--output", str(export))
    minutes["export"] = minutes_since(began)
    filled = trainer("fill-mask", *SAMPLES, "--model", str(export)).splitlines()
    places = [
        *map(filled.index, SAMPLES),
        len(filled) - 1,
    ]  # the last line says how much the model has read
    samples = {
        text: filled[at + 1 : end]
        for text, (at, end) in zip(SAMPLES, pairwise(places), strict=True)
    }
    minutes["all"] = sum(minutes.values())
    result.put(samples=samples, cost_minutes=minutes, clocks_at_end=read_clocks(), complete=True)
    last: dict[str, Any] = measured[-1]
    print(
        f"{rows[-1]['step']} steps in {minutes['training_with_start']:.1f} minutes, validation {last}"
    )
    for text, found in samples.items():
        print(f"{text} {found}")
    print(result.path)
    return 0


def write_settings(options: argparse.Namespace) -> Path:
    """Settings of the run."""
    phase = {
        "seq_len": options.seq_len,
        "global_batch": options.batch,
        "steps": SCALE_STEPS,
        "peak_lr": PEAK_LR[options.preset],
        "warmup_fraction": 0.06,
    }
    return write_config(
        options.work / "run.yaml",
        None,
        data=[options.data],
        phases=[phase],
        model={"preset": options.preset},
        budget_hours=options.minutes / 60,
        precision="bf16",
        zero_stage=1,
        compile=options.device == "cuda",
        micro_tokens=options.micro_tokens,
        validation={"interval": 500, "num_instances": 2_000},
        checkpoint={"interval": 2_000, "keep": 1},
    )


def trainer(*arguments: str) -> str:
    """What a subcommand prints."""
    command = [sys.executable, "-m", "trainer", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def minutes_since(began: float) -> float:
    """Rounded to a hundredth."""
    return round((time.monotonic() - began) / 60, 2)


if __name__ == "__main__":
    raise SystemExit(main())
