"""BERT pretraining on one GPU: correctness, ceiling, a sweep of real steps and its peers, within a stated time.

    python -m scripts.bench.pretrain_gpu --data DATASET --minutes 9.5

DATASET holds lengths 128 and 512 (docs/gpu.md makes one of 40 MB). Checks what the device computes
against the CPU, measures a matrix product and a copy, then the cases of scripts/bench/gpu/cases.py
in order of worth until the time is used. Prints a table and writes WHAT_HARDWARE_DATE.json, renewed
after every case. The exit code is 1 where a check or a case failed. `--device cpu --preset tiny`
runs the same code on a CPU, whose times mean nothing; the file says so.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch

from pipeline.shards.dataset import open_dataset
from scripts.bench.gpu.cases import Budget, Case, cpu_cases, gpu_cases
from scripts.bench.gpu.checks import check_all
from scripts.bench.gpu.limits import measure_limits
from scripts.bench.gpu.measure import Bench
from scripts.bench.gpu.result import HEADER, ResultFile, compare, format_row, read_clocks
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.process.ranks import Ranks, start_ranks, stop_ranks

GUESSED_SECONDS = {"cuda": 40.0, "cpu": 3.0}  # of a case before one of its kind has run


def main() -> int:
    """Measures."""
    options = parse_options()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise SystemExit(
            "pretrain_gpu: torch sees no GPU here; --device cpu --preset tiny runs the code on a CPU"
        )
    ranks = start_ranks()
    try:
        return benchmark(options, ranks)
    finally:
        stop_ranks()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", required=True, help="dataset with lengths 128 and 512")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="after which no case is begun that would not fit"
    )
    parser.add_argument(
        "--case_seconds", type=float, default=5.0, help="timed steps of a case, at least 5 steps"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--preset", default="large")
    parser.add_argument(
        "--seq_lens", type=int, nargs="+", default=[128, 512], help="of the cases on a CPU"
    )
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument(
        "--output", type=Path, help="file or folder of the result; scripts/bench/results without it"
    )
    return parser.parse_args()


def benchmark(options: argparse.Namespace, ranks: Ranks) -> int:
    """All of it; the exit code."""
    device = ranks.device
    budget = Budget(60 * options.minutes, GUESSED_SECONDS[device.type])
    result = ResultFile("pretrain_gpu", device, options.output)
    dataset = open_dataset(options.data)
    config = preset(options.preset, vocab_size=dataset.manifest.vocab_size)
    result.put(
        model=vars(config),
        preset=options.preset,
        dataset=dataset.manifest.root_hash,
        minutes=options.minutes,
    )
    checks: list[dict[str, Any]] = []
    for check in check_all(device, compiled=device.type == "cuda"):
        checks.append(check)
        print(format_check(check), flush=True)
        result.put(
            checks=checks, failed_checks=[each["name"] for each in checks if not each["passed"]]
        )
    limits = measure_limits(
        device, torch.bfloat16, *((20, 1) if device.type == "cuda" else (2, 16))
    )
    result.put(limits=limits)
    cases = [
        each
        for each in choose_cases(options, device)
        if not options.only or options.only in each.name
    ]
    profiled = frozenset(
        each.name for each in cases[: 3 if device.type == "cuda" else 1] if each.system == "ours"
    )
    model = build_model(config, seed=0)
    bench = Bench(dataset, model, ranks, limits["matmul_tflops"], options.case_seconds, profiled)
    rows: list[dict[str, Any]] = []
    result.put(cases=rows, goals=[])
    print(HEADER, flush=True)
    for row in budget.spend(cases, bench.run):
        rows.append(row)
        print(format_row(row), flush=True)
        result.put(cases=rows, goals=compare(rows))
    result.put(complete=True, clocks_at_end=read_clocks())
    failed = [each["name"] for each in rows if "error" in each]
    print_summary(result, failed)
    return 1 if failed or result.content["failed_checks"] else 0


def choose_cases(options: argparse.Namespace, device: torch.device) -> list[Case]:
    """The sweep for the device."""
    return gpu_cases() if device.type == "cuda" else cpu_cases(options.seq_lens)


def format_check(check: dict[str, Any]) -> str:
    """A check on one line."""
    if check["passed"]:
        return f"passed {check['name']}: {check['value']} of {check['bound']}"
    reason = check.get("error", f"{check['value']} is above {check['bound']}")
    return f"FAILED {check['name']}: {reason}"


def print_summary(result: ResultFile, failed: list[str]) -> None:
    """Ceiling, checks, goals and where the file is."""
    content = result.content
    print(
        f"matmul {content['limits']['matmul_tflops']:.1f} TFLOP/s; {len(content['checks'])} checks"
    )
    for check in content["checks"]:
        if not check["passed"]:
            print(format_check(check))
    for goal in content["goals"]:
        print(
            f"{'met ' if goal['met'] else 'NOT '} {goal['goal']} {goal['value']} ({goal['bound']}): {goal['cases']}"
        )
    for name in failed:
        print(f"FAILED {name}")
    if not content["times_mean_something"]:
        print("this is a CPU: the code ran, its times mean nothing")
    print(result.path)


if __name__ == "__main__":
    raise SystemExit(main())
