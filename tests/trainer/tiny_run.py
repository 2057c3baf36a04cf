"""A finished run on one rank, trained for a few steps, for tests of what opens runs."""

from pathlib import Path

import yaml

from tests.trainer.two_ranks import run_ranks

SIZES = {
    "num_layers": 2, "hidden_size": 24, "num_heads": 3, "intermediate_size": 40, "max_position_embeddings": 32,
    "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def train_tiny_run(data: Path, output: Path, **changed: object) -> Path:
    """Trains 4 steps in fp32, with a validation and a checkpoint after every second one.

    Args:
        data: A dataset of 16 tokens an instance.
        output: The run's folder.
        changed: Settings of pretrain that differ from these.
    """
    config = {
        "data": [str(data)],
        "output": str(output),
        "phases": [
            {"seq_len": 16, "global_batch": 12, "steps": 4, "peak_lr": 0.02, "warmup_steps": 1}
        ],
        "model": {"preset": "tiny", "overrides": SIZES},
        "validation": {"interval": 2},
        "checkpoint": {"interval": 2, "keep": 4},
        "micro_tokens": 96,
        "precision": "fp32",
        **changed,
    }
    file = output.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config))
    [process] = run_ranks(["-m", "trainer", "pretrain", "--config", str(file)], 1)
    assert process.returncode == 0, process.stderr
    return output
