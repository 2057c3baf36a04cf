"""Two ranks under every ZeRO stage against one big batch in one process, and what surrounds a step.

Run as a program, this file is one of the two ranks: it writes what it measured, the tests below judge it.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.engine import (
    agree_on_step,
    deepspeed_config,
    forward_sums,
    grad_norm,
    read_deepspeed_file,
    start_engine,
    train_step,
)
from trainer.model.bert import build_model
from trainer.model.config import BertConfig
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.ranks import start_ranks, stop_ranks, together

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=24,
    num_layers=2,
    num_heads=3,
    intermediate_size=40,
    max_position_embeddings=16,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
# Rank 0 has two micro-batches a step, rank 1 has one of another size.
LENGTHS = [[[7, 5], [9]], [[12, 3, 4]]]
STEPS = 6
KINDS = {"adamw": AdamW, "lamb": Lamb}
EXACT = [(kind, stage, "fp32") for kind in KINDS for stage in (0, 1, 2)]
RUNS = [*EXACT, *((kind, stage, "bf16") for kind in KINDS for stage in (1, 2))]
OVERLAP = "configs/deepspeed/zero2-overlap.json"


def micro_batches(rank, step):
    return [random_micro_batch(lengths, 50, 100 * step + 10 * rank + i) for i, lengths in enumerate(LENGTHS[rank])]


def make_optimizer(model, kind):
    optimizer = KINDS[kind](model.named_parameters(), max_grad_norm=0.7)
    optimizer.set_learning_rate(0.01)
    return optimizer


def train_alone(kind):
    """One process without DeepSpeed: every micro-batch of a step in one loss."""
    model = build_model(CONFIG, seed=3)
    optimizer = make_optimizer(model, kind)
    rows = []
    for step in range(STEPS):
        batches = [*micro_batches(0, step), *micro_batches(1, step)]
        masked = sum(len(batch.masked_labels) for batch in batches)
        instances = sum(len(batch.is_random_next) for batch in batches)
        sums = [forward_sums(model, batch, torch.device("cpu")) for batch in batches]
        loss = sum(s.mlm_nll for s in sums) / masked + sum(s.nsp_nll for s in sums) / instances
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        rows.append([sum(s.mlm_nll.item() for s in sums), float(optimizer.grad_norm)])
    return rows, norms_of(optimizer), {name: weight.detach().clone() for name, weight in model.named_parameters()}


def norms_of(optimizer):
    """Squared norms of every parameter's gradient, weights and running mean."""
    pieces = [[piece.of(optimizer.tensors(kind)) for piece in optimizer.fragments] for kind in ("fp32", "exp_avg")]
    return [optimizer.grad_squared_norms_P.tolist(), *optimizer.squared_norms(*pieces).tolist()]


def train_on_ranks(ranks, kind, stage, precision, chosen):
    model = build_model(CONFIG, seed=3)
    optimizer = make_optimizer(model, kind)
    engine = start_engine(model, optimizer, deepspeed_config(chosen, stage, precision), ranks)
    rows = []
    for step in range(STEPS):
        batches = micro_batches(ranks.rank, step)
        counts = agree_on_step(ranks, batches, wait_seconds=0.25 * ranks.rank, must_stop=ranks.rank == 1 and step == 3)
        sums = train_step(engine, ranks, batches, counts)
        rows.append([sums[0].item(), grad_norm(engine, optimizer)])
    weights = {name: parameter.detach().float() for name, parameter in engine.module.named_parameters()}
    found = {"rows": rows, "norms": norms_of(optimizer), "counts": vars(counts), "fragments": len(optimizer.fragments)}
    return found, weights


def main(folder):
    ranks = start_ranks()
    results = {"world_size": ranks.world_size}
    for kind, stage, precision in RUNS:
        results[f"{kind} {stage} {precision}"], weights = train_on_ranks(ranks, kind, stage, precision, {})
        torch.save(weights, folder / f"{kind}-{stage}-{precision}-{ranks.rank}.pt")
    results["overlap"], _ = train_on_ranks(ranks, "adamw", 2, "fp32", read_deepspeed_file(OVERLAP))
    try:
        with together(ranks):
            if ranks.rank == 1:
                Path("no-such-shard").read_bytes()
    except (ValueError, FileNotFoundError) as fault:
        results["fault"] = [type(fault).__name__, str(fault)]
    (folder / f"results-{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    finished = run_ranks([__file__, str(folder)], world_size=2)
    for process in finished:
        assert process.returncode == 0, process.stderr
        assert process.stdout == "", "DeepSpeed's chatter reaches the user"
    return folder


@pytest.fixture(scope="module")
def alone():
    return {kind: train_alone(kind) for kind in KINDS}


def results_of(folder, rank=0):
    return json.loads((folder / f"results-{rank}.json").read_text())


@pytest.mark.parametrize(("kind", "stage", "precision"), EXACT)
def test_two_ranks_equal_one_big_batch(two_ranks, alone, kind, stage, precision):
    rows, norms, weights = alone[kind]
    found = results_of(two_ranks)[f"{kind} {stage} {precision}"]
    torch.testing.assert_close(torch.tensor(found["rows"]), torch.tensor(rows), rtol=5e-7, atol=0)
    torch.testing.assert_close(torch.tensor(found["norms"]), torch.tensor(norms), rtol=5e-6, atol=1e-9)
    for rank in range(2):
        theirs = torch.load(two_ranks / f"{kind}-{stage}-{precision}-{rank}.pt")
        for name, weight in weights.items():
            torch.testing.assert_close(theirs[name], weight, rtol=0, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_the_deepspeed_file_of_the_project_changes_nothing(two_ranks):
    results = results_of(two_ranks)
    assert results["overlap"]["rows"] == results["adamw 2 fp32"]["rows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [1, 2])
def test_bf16_stays_near_fp32(two_ranks, alone, kind, stage):
    found = torch.tensor(results_of(two_ranks)[f"{kind} {stage} bf16"]["rows"])
    torch.testing.assert_close(found, torch.tensor(alone[kind][0]), rtol=0.02, atol=0)


def test_zero_partitions_what_a_rank_updates(two_ranks):
    num_parameters = len(alone_names())
    for rank in range(2):
        results = results_of(two_ranks, rank)
        assert results["adamw 0 fp32"]["fragments"] == num_parameters
        assert results["adamw 1 fp32"]["fragments"] < num_parameters


def alone_names():
    return [name for name, _ in build_model(CONFIG, seed=3).named_parameters()]


def test_ranks_agree_on_counts(two_ranks):
    rows = [batch for rank in LENGTHS for batch in rank]
    for rank in range(2):
        counts = results_of(two_ranks, rank)["adamw 1 fp32"]["counts"]
        assert counts["num_micro_batches"] == 2
        assert counts["instances"] == sum(len(lengths) for lengths in rows)
        assert counts["tokens"] == sum(sum(lengths) for lengths in rows)
        assert counts["most_tokens"] == 21
        assert counts["wait_seconds"] == 0.25
        assert counts["must_stop"] is False


def test_a_fault_of_one_rank_is_raised_on_all(two_ranks):
    missing = "[Errno 2] No such file or directory: 'no-such-shard'"
    assert results_of(two_ranks, 0)["fault"] == ["ValueError", f"rank 1: {missing}"]
    assert results_of(two_ranks, 1)["fault"] == ["FileNotFoundError", missing]


def test_deepspeed_file_of_the_project_is_accepted():
    chosen = read_deepspeed_file(OVERLAP)
    config = deepspeed_config(chosen, 2, "bf16")
    assert config["zero_optimization"]["stage"] == 2
    assert config["zero_optimization"]["overlap_comm"] is True
    assert config["gradient_clipping"] == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"train_batch_size": 32}', "train_batch_size"),
        ('{"gradient_clipping": 1.0}', "gradient_clipping"),
        ('{"bf16": {"enabled": true}}', "bf16"),
        ('{"optimizer": {"type": "Adam"}, "scheduler": {}}', "optimizer, scheduler"),
        ('{"zero_optimization": {"stage": 3}}', "zero_optimization sets stage"),
        ("{", "not JSON"),
    ],
)
def test_keys_that_the_trainer_decides_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_deepspeed_file(str(path))


def test_combinations_that_deepspeed_cannot_do_are_refused():
    with pytest.raises(ValueError, match="zero_stage 1 or 2"):
        deepspeed_config({}, 0, "bf16")
    with pytest.raises(ValueError, match="zero_stage 2 only"):
        deepspeed_config({"zero_optimization": {"overlap_comm": True}}, 1, "fp32")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
