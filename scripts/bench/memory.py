"""How much memory a rank of a run takes at its peak, beside what `trainer plan` says: a JSON line for each case.

    python -m scripts.bench.memory --models tiny base --ranks 1 2 > scripts/bench/results/memory-DATE.jsonl

A case is a run of the real trainer on this machine's CPU, every rank a fresh process: three steps of two micro-batches
of full instances of 128 tokens, validation, and two checkpoints. `measured_gb` is the resident memory of the fullest
rank at its peak, as the kernel counts it until the process ends; `planned_gb` is what the plan says of one rank.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.shards.block import Block, block_instances
from scripts.bench.measured import print_result
from scripts.checkout import ROOT

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
    zero_stage: int
    ranks: int
    optimizer: str
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
            "tensorboard": False,
        }


def full_block(seed: int) -> Block:
    """Instances of SEQ_LEN tokens, 15 % of them masked: what `plan` assumes where it has no dataset."""
    rng, size = np.random.default_rng(seed), block_instances(SEQ_LEN)
    ids_BS = rng.integers(5, VOCAB_SIZE, (size, SEQ_LEN)).astype(np.uint16)
    middle, num_masked = SEQ_LEN // 2, round(0.15 * SEQ_LEN)
    ids_BS[:, 0], ids_BS[:, middle], ids_BS[:, -1] = SPECIALS["cls"], SPECIALS["sep"], SPECIALS["sep"]
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

    shards = {("train", SEQ_LEN, 0, 0): [full_block(0)], ("validation", SEQ_LEN, 0, 0): [full_block(1)]}
    folder.mkdir()
    return write_dataset(folder, shards, VOCAB_SIZE, {"lower_case": True})


def measure(case: Case, data: Path, folder: Path) -> int:
    """Bytes that the fullest rank of a case has held.

    Raises:
        RuntimeError: A rank failed; with the end of what it said.
    """
    config = folder / "config.json"
    config.write_text(json.dumps({**case.settings(), "data": [str(data)], "output": str(folder / "run")}))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes, logs = [], []
    for rank in range(case.ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": case.ranks, "LOCAL_WORLD_SIZE": case.ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **{name: str(value) for name, value in place.items()}}
        logs.append(folder / f"rank-{rank}.log")
        command = [sys.executable, "-m", "trainer", "pretrain", "--config", str(config)]
        with logs[-1].open("wb") as log:
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    ends = [os.wait4(process.pid, 0) for process in processes]
    failed = [log.read_text(errors="replace")[-2000:] for log, (_, status, _) in zip(logs, ends, strict=True) if status]
    if failed:
        raise RuntimeError(f"{case}: {failed[0]}")
    return max(usage.ru_maxrss for _, _, usage in ends) * 1024


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["tiny", "base"])
    parser.add_argument("--zero_stages", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "lamb"])
    parser.add_argument("--micro_tokens", nargs="+", type=int, default=[1_024])
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beambert-memory-") as name:
        data = write_data(Path(name) / "data")
        cases = [
            Case(model, stage, ranks, optimizer, tokens)
            for model in own.models for tokens in own.micro_tokens for ranks in own.ranks
            for stage in own.zero_stages for optimizer in own.optimizers
        ]
        for number, case in enumerate(cases):
            folder = Path(name) / str(number)
            folder.mkdir()
            measured = measure(case, data, folder)
            print_result("memory", asdict(case), PACKAGES, measured_gb=round(measured / 1e9, 3))
            sys.stdout.flush()
            subprocess.run(["rm", "-r", str(folder)])


if __name__ == "__main__":
    main()
