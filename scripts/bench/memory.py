"""How much memory a rank of a run takes at its peak, beside what `trainer plan` says: a JSON line for each case.

    python -m scripts.bench.memory --models tiny base --ranks 1 2 >
    scripts/bench/results/memory-DATE.jsonl

A case is a run of the real trainer, every rank a fresh process: three steps of two micro-batches of
full instances of 128 tokens, validation, and two checkpoints. `measured_gb` is the resident memory
of the fullest rank at its peak, as the kernel counts it until the process ends; with `--device
cuda` what torch's allocator has given out, which has not been run yet. `planned_gb` is what the
plan says of that rank, `ratio` planned over measured. `--models large` wants 24 GB.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.shards.block import Block, block_instances
from scripts.bench.measured import print_result
from scripts.checkout import ROOT
from trainer.model.settings import ModelSettings
from trainer.optim.settings import OptimizerSettings
from trainer.order.source import open_mixture
from trainer.preflight.memory import Memory, count_memory
from trainer.preflight.phase_plan import memory_case, plan_phases
from trainer.preflight.settings import PlanSettings
from trainer.settings import Phase

SEQ_LEN, VOCAB_SIZE, STEPS, MICRO_BATCHES = 128, 30_522, 3, 2
PACKAGES = ("torch", "deepspeed", "numpy")
SPECIALS = {"cls": 2, "sep": 3, "mask": 4}


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        model: Preset.
        zero_stage: 0 to 2.
        ranks: Processes, all on this machine.
        optimizer: adamw or lamb.
        micro_tokens: Of a micro-batch.
    """

    model: str
    zero_stage: Literal[0, 1, 2]
    ranks: int
    optimizer: Literal["adamw", "lamb"]
    micro_tokens: int

    def settings(self) -> dict[str, Any]:
        """Of `pretrain` and of `plan` alike."""
        batch = self.ranks * MICRO_BATCHES * self.micro_tokens // SEQ_LEN
        phase = {"seq_len": SEQ_LEN, "global_batch": batch, "steps": STEPS, "peak_lr": 1e-4}
        return {
            "model": {"preset": self.model},
            "optimizer": {"name": self.optimizer},
            "phases": [phase],
            "micro_tokens": self.micro_tokens,
            "zero_stage": self.zero_stage,
            "checkpoint": {"interval": 2, "keep": 1},
            "validation": {"interval": 2, "num_instances": 8},
        }


def full_block(seed: int) -> Block:
    """Instances of SEQ_LEN tokens, 15 % of them masked: what `plan` assumes where it has no dataset."""
    rng, size = np.random.default_rng(seed), block_instances(SEQ_LEN)
    ids_BS = rng.integers(5, VOCAB_SIZE, (size, SEQ_LEN)).astype(np.uint16)
    middle, num_masked = SEQ_LEN // 2, round(0.15 * SEQ_LEN)
    ids_BS[:, 0], ids_BS[:, middle], ids_BS[:, -1] = (
        SPECIALS["cls"],
        SPECIALS["sep"],
        SPECIALS["sep"],
    )
    positions_M = np.arange(1, 1 + 3 * num_masked, 3)
    positions_M = positions_M[positions_M != middle]
    labels_BM = ids_BS[:, positions_M].copy()
    ids_BS[:, positions_M] = SPECIALS["mask"]
    return Block(
        input_ids=ids_BS.ravel(),
        offsets=np.arange(0, size * SEQ_LEN + 1, SEQ_LEN, dtype=np.int32),
        segment_a_length=np.full(size, middle + 1, np.uint16),
        masked_lm_positions=np.tile(positions_M, size).astype(np.uint16),
        masked_lm_ids=labels_BM.ravel(),
        masked_offsets=np.arange(0, size * len(positions_M) + 1, len(positions_M), dtype=np.int32),
        is_random_next=rng.integers(0, 2, size).astype(bool),
        document_a=np.arange(size, dtype=np.uint64),
        document_b=np.arange(size, dtype=np.uint64),
    )


def write_data(folder: Path) -> Path:
    """A dataset of one pass, with a validation split."""
    from tests.datasets import write_dataset

    shards = {
        ("train", SEQ_LEN, 0, 0): [full_block(0)],
        ("validation", SEQ_LEN, 0, 0): [full_block(1)],
    }
    folder.mkdir()
    return write_dataset(folder, shards, VOCAB_SIZE, {"lower_case": True})


def measure(case: Case, data: Path, folder: Path, device: str) -> int:
    """Bytes that the fullest rank of a case has held.

    Raises:
        RuntimeError: A rank failed; with the end of what it said.
    """
    config = folder / "config.json"
    config.write_text(
        json.dumps({**case.settings(), "data": [str(data)], "output": str(folder / "run")})
    )
    peaks = wait_for_ranks(start_ranks(config, case.ranks, device), config)
    if device == "cpu":
        return max(peaks)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return int(max(row.get("peak_memory_bytes", 0) for row in rows))


def start_ranks(config: Path, ranks: int, device: str) -> list[subprocess.Popen[bytes]]:
    """A process for each rank of `pretrain --config CONFIG`, which write CONFIG.rank-0.log and so on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "trainer", "pretrain", "--config", str(config)]
    processes = []
    for rank in range(ranks):
        place: dict[str, object] = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "RANK": rank,
            "LOCAL_RANK": rank,
        }
        place |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        place |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            **{name: str(value) for name, value in place.items()},
        }
        with log_of(config, rank).open("wb") as log:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            )
    return processes


def wait_for_ranks(processes: list[subprocess.Popen[bytes]], config: Path) -> list[int]:
    """Resident bytes of each rank at its peak, once all have ended.

    Raises:
        RuntimeError: A rank failed; with the end of what it said.
    """
    ends = [os.wait4(process.pid, 0) for process in processes]
    for rank, (_, status, _) in enumerate(ends):
        if status:
            raise RuntimeError(
                f"rank {rank}: {log_of(config, rank).read_text(errors='replace')[-2000:]}"
            )
    return [usage.ru_maxrss * 1024 for _, _, usage in ends]


def log_of(config: Path, rank: int) -> Path:
    """What a rank said."""
    return config.with_name(f"{config.name}.rank-{rank}.log")


def plan(case: Case, data: Path, device: str) -> Memory:
    """What `trainer plan` counts for the fullest rank."""
    found = PlanSettings(
        data=[str(data)],
        phases=[Phase(**case.settings()["phases"][0])],
        model=ModelSettings(**case.settings()["model"]),
        optimizer=OptimizerSettings(name=case.optimizer),
        micro_tokens=case.micro_tokens,
        zero_stage=case.zero_stage,
        world_size=case.ranks,
        gpu="cpu" if device == "cpu" else "h200",
        peak_tflops=1.0,
    )
    config = found.model_config(VOCAB_SIZE)
    phases = plan_phases(found, config, open_mixture(found.data, {}))
    return count_memory(memory_case(found, config, phases, case.zero_stage))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", default=["tiny", "base"])
    parser.add_argument("--zero_stages", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "lamb"])
    parser.add_argument("--micro_tokens", nargs="+", type=int, default=[1_024])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-memory-") as name:
        data = write_data(Path(name) / "data")
        cases = [
            Case(model, stage, ranks, optimizer, tokens)
            for model in own.models
            for tokens in own.micro_tokens
            for ranks in own.ranks
            for stage in own.zero_stages
            for optimizer in own.optimizers
        ]
        for number, case in enumerate(cases):
            folder = Path(name) / str(number)
            folder.mkdir()
            measured, planned = (
                measure(case, data, folder, own.device),
                plan(case, data, own.device),
            )
            terms = planned.held | planned.moments[planned.fullest] | planned.process
            print_result(
                "memory",
                {**asdict(case), "device": own.device},
                PACKAGES,
                measured_gb=round(measured / 1e9, 3),
                planned_gb=round(planned.total / 1e9, 3),
                ratio=round(planned.total / measured, 3),
                fullest=planned.fullest,
                terms_gb={name: round(size / 1e9, 3) for name, size in terms.items()},
            )
            sys.stdout.flush()
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
