"""What an update would cost a GPU, counted on a CPU, and the benchmark of steps."""

import json
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.two_ranks import run_ranks
from trainer.model.bert import build_model
from trainer.model.config import BertConfig
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.optim.settings import OptimizerSettings

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
VIEWS = {
    "view",
    "t",
    "detach",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "transpose",
    "_unsafe_view",
    "alias",
    "unbind",
}


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    @property
    def launches(self):
        started = {name: count for name, count in self.counts.items() if name not in VIEWS}
        return sum(
            count for name, count in started.items() if not name.startswith("_record_function")
        )


@pytest.mark.parametrize(("optimizer_class", "most"), [(AdamW, 20), (Lamb, 32)])
def test_an_update_starts_as_many_operations_however_many_tensors_there_are(optimizer_class, most):
    launches = []
    for num_layers in (1, 6):
        model = build_model(BertConfig(num_layers=num_layers, **SIZES), seed=0)
        optimizer = optimizer_class(model.named_parameters(), OptimizerSettings(max_grad_norm=0.01))
        for counting in (nullcontext(), Operations()):  # the first update makes what all others use
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)  # anew: an update leaves it clipped
            with counting:
                optimizer.step()
        launches.append(counting.launches)
    assert launches[0] == launches[1] <= most


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
