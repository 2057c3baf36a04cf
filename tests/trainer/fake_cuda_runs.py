"""Trains tiny models on the stand-in for CUDA and prints what each step asked of it: one line of JSON for each run.

    scripts/fake-cuda python tests/trainer/fake_cuda_runs.py DATASET FOLDER

A run is a fork that has torch loaded: a process can start DeepSpeed only once, and its import
starts CUDA.
"""

import json
import os
import sys
import traceback
from pathlib import Path

import torch

from scripts.fake_cuda.counts import counts
from trainer.model import attention
from trainer.model.settings import ModelSettings
from trainer.optim.settings import OptimizerSettings
from trainer.pretrain import loop
from trainer.settings import Phase, PretrainSettings

STEPS = 4
# Name, precision, stage of ZeRO, most tokens of a micro-batch (8 instances of 8 to 16 tokens),
# compiled, and an override of the model.
RUNS = [
    ("adamw", "bf16", 1, 1_000, False, ""),
    ("adamw", "bf16", 1, 64, False, ""),
    ("adamw", "bf16", 2, 1_000, False, ""),
    ("lamb", "bf16", 1, 1_000, False, ""),
    ("lamb", "bf16", 2, 1_000, False, ""),
    ("adamw", "fp32", 0, 1_000, False, ""),
    ("lamb", "fp32", 0, 1_000, False, ""),
    ("adamw", "bf16", 1, 64, True, ""),
    ("adamw", "bf16", 1, 64, True, "fused_sums"),
    ("adamw", "bf16", 1, 64, False, "fp8"),
    ("adamw", "bf16", 1, 64, True, "fp8"),
]


def main() -> None:
    """Makes all runs, one after the other."""
    data, folder = sys.argv[1:]
    for number, run in enumerate(RUNS):
        pid = os.fork()
        if pid == 0:
            try:
                train(data, Path(folder) / str(number), *run)
            except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"run {run} failed")


def train(
    data: str,
    output: Path,
    optimizer: str,
    precision: str,
    stage: int,
    micro_tokens: int,
    is_compiled: bool,
    override: str,
):
    """`pretrain`, with the counters read after each step."""
    if (
        precision == "fp32"
    ):  # padded attention asks the device for the rows' layout, and here gets none
        attention.PackedSequences.padded = None
        attention._padded_attention = lambda q, k, v, *_: q + k + v
    seen, log_step = [counts()], loop._log_step

    def log_and_count(*args):
        log_step(*args)
        seen.append(counts())

    loop._log_step = log_and_count
    settings = PretrainSettings(
        data=[data],
        output=str(output),
        phases=[Phase(16, 8, STEPS, 1e-3)],
        model=ModelSettings("tiny", {"num_layers": 2} | ({override: True} if override else {})),
        optimizer=OptimizerSettings(optimizer),
        precision=precision,
        zero_stage=stage,
        micro_tokens=micro_tokens,
        compile=is_compiled,
    )
    code = loop.pretrain(settings)
    before, after = seen[-2:]
    step = {name: after[name] - before[name] for name in after}
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"] if is_compiled else 0
    found = {
        "optimizer": optimizer,
        "precision": precision,
        "stage": stage,
        "micro_tokens": micro_tokens,
    }
    found["override"] = override
    os.write(
        1,
        (
            json.dumps({**found, "code": code, "steps": len(seen) - 1, "graphs": graphs, **step})
            + "\n"
        ).encode(),
    )


if __name__ == "__main__":
    main()
