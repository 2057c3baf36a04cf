"""What a rank holds in memory: copies for checkpoints, DeepSpeed's buckets, and what the plan counts."""

from types import SimpleNamespace

import pytest
import torch

from trainer.checkpoints.write import HostCopies, take_snapshot
from trainer.engine import bucket_sizes
from trainer.memory import bucket_elements
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.optim.adamw import AdamW
from trainer.ranks import Ranks

ALONE = Ranks(rank=0, world_size=1, device=torch.device("cpu"), counts_group=None)


def snapshot_of(model, copies):
    optimizer = AdamW(model.named_parameters())
    engine = SimpleNamespace(module=model, zero_optimization_stage=lambda: 0)
    return take_snapshot({"step": 1}, engine, optimizer, ALONE, copies)


def test_a_snapshot_copies_fp32_weights_once():
    model, copies = build_model(preset("tiny", vocab_size=50), 0), HostCopies()
    files = snapshot_of(model, copies).files
    weights, pieces = files["model.safetensors"], files["fragments-00000-of-00001.safetensors"]
    for name, parameter in model.named_parameters():
        assert pieces[f"fp32/{name}"].data_ptr() == weights[name].data_ptr() != parameter.data_ptr()
        assert torch.equal(pieces[f"fp32/{name}"], parameter.detach().view(-1))
    held = sum(each.numel() for each in copies._kept.values())
    assert held == 3 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("num_parameters", "largest", "elements"),
    [
        (4_416_698, 3_906_816, 4_416_698),  # tiny: one bucket
        (110_106_428, 23_440_896, 33_554_432),
        (336_226_108, 31_254_528, 33_554_432),
        (336_226_108, 40_000_001, 40_000_002),  # no tensor needs two, and the number is even
    ],
)
def test_buckets_fit_the_model(num_parameters, largest, elements):
    assert bucket_elements(num_parameters, largest) == elements


def test_buckets_of_a_model_leave_frozen_weights_out():
    model = build_model(preset("tiny", vocab_size=50, num_layers=1, hidden_size=8, num_heads=1), 0)
    sizes = bucket_sizes(model)
    assert sizes == {"reduce_bucket_size": sizes["allgather_bucket_size"], **sizes}
    model.bert.embeddings.position.requires_grad_(False)
    assert sizes["reduce_bucket_size"] - bucket_sizes(model)["reduce_bucket_size"] == 512 * 8
