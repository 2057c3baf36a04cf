"""The benchmark of steps on a GPU, run on a CPU."""

import json

import pytest

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.two_ranks import run_ranks


@pytest.mark.engines
def test_the_benchmark_of_steps_runs_on_a_cpu(tmp_path):
    data = write_tiny_dataset(tmp_path / "data")
    flags = ["--preset", "tiny", "--seq_lens", "16", "--step_tokens", "64", "--eager"]
    flags += ["--seconds", "0", "--product_size", "32", "--data", str(data)]
    [process] = run_ranks(["-m", "scripts.bench.pretrain_gpu", *flags], 1)
    assert process.returncode == 0, process.stderr
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    errors = [row["error"] for row in rows if "error" in row]
    assert len(rows) == 5
    assert all("FlashAttention2" in error for error in errors), errors
    losses = {row["first_loss"] for row in rows if "first_loss" in row}
    assert len(losses) > 1
