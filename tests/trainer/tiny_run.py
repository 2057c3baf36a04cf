"""Runs of a tiny model, for tests of what trains and of what opens runs."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.trainer.two_ranks import run_ranks
from trainer.model.config import BertConfig

TINY = {"num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40}
TINY |= {"max_position_embeddings": 32}
WITHOUT_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
SIZES = TINY | WITHOUT_DROPOUT
BERT = BertConfig(vocab_size=50, **TINY | {"max_position_embeddings": 16})
"""A model for tests without a dataset."""


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


def launch(
    program: Sequence[str], arguments: Sequence[str], world_size: int, expected: int = 0
) -> str:
    """What the first of the ranks said, which all ended with a code."""
    finished = run_ranks([*program, *arguments], world_size, timeout=600)
    assert {process.returncode for process in finished} == {expected}, finished[0].stderr
    return finished[0].stdout + finished[0].stderr


def rows_of(run: Path, split: str = "train", left_out: Sequence[str] = ()) -> list[dict]:
    """Rows of metrics.jsonl."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] == split]
    return [{key: row[key] for key in row if key not in left_out} for row in rows]


def train_tiny_run(data: Path, output: Path, **changed: object) -> Path:
    """Trains 4 steps of 16 tokens, with a validation and a checkpoint after every second one."""
    settings = {"validation": {"interval": 2}, "checkpoint": {"interval": 2, "keep": 4}}
    arguments = write_config(output, data, **settings, **{"micro_tokens": 96, **changed})
    launch(["-m", "trainer"], arguments, 1)
    return output
