"""Runs of a tiny model, for tests of what trains and of what opens runs.

Run as a program, this file is a rank that meets an accident: `tiny_run.py ACCIDENT STEP pretrain
...`.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.trainer.two_ranks import run_ranks
from trainer.cli import main
from trainer.model.config import BertConfig

TINY = {"num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40}
TINY |= {"max_position_embeddings": 32}
WITHOUT_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
SIZES = TINY | WITHOUT_DROPOUT
BERT = BertConfig(vocab_size=50, **TINY | {"max_position_embeddings": 16})
"""A model for tests without a dataset."""
OURS = ("-m", "trainer")


def write_config(output: Path, data: Path, **settings: object) -> list[str]:
    """The arguments of a run: a phase of 4 steps unless the settings say otherwise."""
    phase = {"seq_len": 16, "global_batch": 12, "steps": 4, "peak_lr": 0.02, "warmup_steps": 1}
    config = {
        "data": [str(data)],
        "output": str(output),
        "phases": [phase],
        "model": {"preset": "tiny", "overrides": SIZES},
        "micro_tokens": 48,
        **settings,
    }
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    return ["pretrain", "--config", str(path)]


def meeting(accident: str, step: int) -> list[str]:
    """The program of ranks that die by `kill` after a step, or of whose last one gets a signal."""
    return [__file__, accident, str(step)]


def launch(
    program: Sequence[str], arguments: Sequence[str], world_size: int, expected: int = 0
) -> str:
    """What the ranks said, which all ended with a code."""
    finished = run_ranks([*program, *arguments], world_size, timeout=600)
    assert {process.returncode for process in finished} == {expected}, finished[0].stderr
    return "".join(process.stdout + process.stderr for process in finished)


def rows_of(run: Path, split: str = "train", left_out: Sequence[str] = ()) -> list[dict]:
    """Rows of metrics.jsonl."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] == split]
    return [{key: row[key] for key in row if key not in left_out} for row in rows]


def train_tiny_run(data: Path, output: Path, **changed: object) -> Path:
    """Trains 4 steps of 16 tokens, with a validation and a checkpoint after every second one."""
    settings = {"validation": {"interval": 2}, "checkpoint": {"interval": 2, "keep": 4}}
    arguments = write_config(output, data, **settings, **{"micro_tokens": 96, **changed})
    launch(OURS, arguments, 1)
    return output


def suffer(accident: str, step: int) -> None:
    """Lets the accident happen once a step has been logged."""
    from trainer.pretrain import loop

    log_step = loop._log_step

    def log_and_suffer(run, *arguments):
        log_step(run, *arguments)
        if run.position.step == step and accident == "kill":
            run.saver.finish()  # it must not depend on the machine to which one the run goes back
            os._exit(9)
        if run.position.step == step and run.ranks.rank == run.ranks.world_size - 1:
            os.kill(os.getpid(), signal.Signals[accident])

    loop._log_step = log_and_suffer


if __name__ == "__main__":
    suffer(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
