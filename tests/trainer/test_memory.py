"""What a rank holds in memory: copies for checkpoints, DeepSpeed's buckets, and what the plan counts.

Run as a program, this file is one rank of a run of three steps, and prints the most bytes of
tensors that it has had.
"""

import itertools
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import Work
from torch.profiler import ProfilerActivity, profile

from pipeline.command_line.program import parse_settings
from scripts.bench import memory as bench
from tests.trainer.two_ranks import run_ranks
from trainer.checkpoints.write import HostCopies, take_snapshot
from trainer.cli import COMMANDS
from trainer.engine.deepspeed_config import bucket_elements
from trainer.engine.start import bucket_sizes
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.optim.adamw import AdamW
from trainer.preflight.memory import Case, activation_bytes, count_memory
from trainer.pretrain.loop import pretrain
from trainer.process.ranks import Ranks, _let_gloo_rest

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


def count_peak(config_file):
    """Most bytes that a run has had of torch's CPU allocator at once: exact, and the same whoever else is at work.

    The profiler does not see what Gloo's threads free, so they let go of every tensor before this
    thread does.
    """
    settings = parse_settings("pretrain", COMMANDS["pretrain"], ["--config", config_file])
    wait = Work.wait

    def wait_for_rest(work, *arguments):
        result = wait(work, *arguments)
        _let_gloo_rest()
        return result

    Work.wait = wait_for_rest
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        pretrain(settings)
    events = profiler.profiler.kineto_results.events()
    changes = sorted(
        (each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"
    )
    return max(itertools.accumulate(nbytes for _, nbytes in changes))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return bench.write_data(tmp_path_factory.mktemp("memory") / "data")


@pytest.mark.engines
@pytest.mark.parametrize(
    ("ranks", "zero_stage", "optimizer", "micro_tokens", "fullest"),
    [
        (1, 0, "adamw", 1_024, "loss"),
        (1, 1, "lamb", 256, "end of the backward pass"),
        (2, 1, "adamw", 256, "end of the backward pass"),
        (2, 2, "lamb", 256, "end of the backward pass"),
    ],
)
def test_the_plan_counts_what_is_allocated(
    data, tmp_path, ranks, zero_stage, optimizer, micro_tokens, fullest
):
    case = bench.Case("tiny", zero_stage, ranks, optimizer, micro_tokens)
    config = tmp_path / "config.json"
    # Saved at the end only: when a copy that is written in the background goes is a matter of
    # chance.
    settings = {
        **case.settings(),
        "checkpoint": {"interval": 0},
        "data": [str(data)],
        "output": str(tmp_path / "run"),
    }
    config.write_text(json.dumps(settings))
    finished = run_ranks([__file__, str(config)], ranks)
    assert not any(each.returncode for each in finished), finished[0].stderr
    counted = int(finished[0].stdout.split()[-1])
    planned = bench.plan(case, data, "cpu")
    assert planned.fullest == fullest
    assert planned.tensors == pytest.approx(counted, rel=0.05)


def test_terms_of_bert_large_on_eight_gpus():
    """P is 336,226,108: bf16 weights and fp32 sums of all, an eighth of fp32 weights and of both means."""
    config = preset("large", vocab_size=30_522)
    first = count_memory(Case(config, 8, 1, precision="bf16", micro_tokens=16_384))
    assert first.held == {
        "weights": 672_452_216, "fp32 weights": 168_113_054, "moments": 336_226_108, "gradient sums": 1_344_904_432,
    }  # fmt: skip
    second = count_memory(Case(config, 8, 2, precision="bf16", micro_tokens=16_384))
    assert "gradient sums" not in second.held
    assert second.moments["reduction"] == {"gradients": 2 * 168_113_054, "buckets": 2 * 134_217_728}
    assert first.process == second.process == {}


@pytest.mark.parametrize(
    ("precision", "is_compiled", "a_logit"),
    [("bf16", False, 12), ("bf16", True, 4), ("fp32", False, 12), ("fp32", True, 8)],
)
def test_a_compiled_loss_copies_no_logits_to_fp32(precision, is_compiled, a_logit):
    config = preset("base", vocab_size=30_000)
    case = Case(config, 1, 1, precision=precision, micro_tokens=1_000, is_compiled=is_compiled)
    assert count_memory(case).moments["loss"]["logits"] == a_logit * 30_000 * 150


def test_activations_depend_on_where_attention_runs():
    """34 bytes on a GPU (Korthikanti et al. 2022, 4.1, without 5as/h); plain torch keeps attention's matrix."""
    config = preset("large", vocab_size=30_522)
    units = 24 * 1_024 * 1_000
    gpu = Case(config, 1, 1, precision="bf16", micro_tokens=1_000)
    assert activation_bytes(gpu) == 34 * units + 4 * 2 * 1_024 * 1_000
    short, long = (
        Case(config, 1, 1, micro_tokens=1_000, seq_len=seq_len, is_cpu=True)
        for seq_len in (128, 512)
    )
    assert (
        activation_bytes(short) == 4 * (21 + 3 * 16 * 128 / 1_024) * units + 4 * 4 * 1_024 * 1_000
    )
    assert activation_bytes(long) == 4 * (21 + 3 * 16 * 512 / 1_024) * units + 4 * 4 * 1_024 * 1_000


if __name__ == "__main__":
    print(count_peak(sys.argv[1]))
