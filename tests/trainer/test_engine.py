"""Two and three ranks under every ZeRO stage against one big batch in one process.

Run as a program, this file is one of the ranks, which writes what it measured.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.trainer.tiny_run import BERT, WITHOUT_DROPOUT
from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.engine.deepspeed_config import BUCKET_ELEMENTS, deepspeed_config
from trainer.engine.deepspeed_file import passed_to_deepspeed
from trainer.engine.partitions import find_parts
from trainer.engine.train_step import (
    begin_to_agree,
    forward_sums,
    grad_norm,
    seed_dropout,
    train_step,
)
from trainer.engine.zero import iterate_weights, start_engine
from trainer.model.bert import build_model
from trainer.model.config import parameter_shapes
from trainer.optim import muon
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.optim.muon import Muon
from trainer.optim.owners import is_muons
from trainer.optim.settings import OptimizerSettings
from trainer.process.ranks import start_ranks, stop_ranks, together

pytestmark = pytest.mark.engines

CONFIG = dataclasses.replace(BERT, **WITHOUT_DROPOUT)
# Rank 0 has two micro-batches a step, rank 1 has one of another size, a rank 2 has none.
LENGTHS = [[[7, 5], [9]], [[12, 3, 4]], []]
STEPS = 20
KINDS = {"adamw": AdamW, "lamb": Lamb, "muon": Muon}
NSP_WEIGHTS = {torch.float32: 1.0, torch.bfloat16: 0.5}
MAX_GRAD_NORMS = {"adamw": 2.3, "lamb": 2.85, "muon": 2.6}  # clip some of the steps
EXACT = [*((kind, stage, "fp32") for kind in KINDS for stage in (0, 1, 2)), ("adamw", 3, "fp32")]
HALF = [*((kind, stage, "bf16") for kind in KINDS for stage in (1, 2)), ("adamw", 3, "bf16")]
OF_THREE = [*((kind, 2, "fp32") for kind in KINDS), ("adamw", 3, "fp32"), ("lamb", 1, "bf16")]
RUNS = {2: [*EXACT, *HALF], 3: OF_THREE}
SMALL = 700
"""Elements of a bucket with which a model has many, and ranks share nearly every matrix."""
ALL = [(world_size, *run) for world_size, runs in RUNS.items() for run in runs]


def micro_batches(rank, step):
    seed = 100 * step + 10 * rank
    return [random_micro_batch(each, 50, seed + i) for i, each in enumerate(LENGTHS[rank])]


def make_optimizer(parameters, kind, **settings):
    chosen = {"name": kind, "max_grad_norm": MAX_GRAD_NORMS[kind], **settings}
    optimizer = KINDS[kind](parameters, OptimizerSettings(**chosen))
    optimizer.set_learning_rate(0.01)
    return optimizer


def train_alone(kind, dtype):
    """One process without DeepSpeed, whose gradients are summed and weights updated in fp32."""
    model = build_model(CONFIG, seed=3).to(dtype)
    make = lambda weight: torch.nn.Parameter(weight.detach().float().clone())  # noqa: E731
    masters = {name: make(weight) for name, weight in model.named_parameters()}
    optimizer = make_optimizer(masters.items(), kind)
    rows = []
    for step in range(STEPS):
        batches = [batch for rank in range(len(LENGTHS)) for batch in micro_batches(rank, step)]
        masked = sum(len(batch.masked_labels) for batch in batches)
        instances = sum(len(batch.is_random_next) for batch in batches)
        for master in masters.values():
            master.grad = torch.zeros_like(master)
        nll = 0.0
        for batch in batches:
            sums = forward_sums(model, batch, torch.device("cpu"))
            nsp_loss = NSP_WEIGHTS[dtype] * sums.nsp_nll / instances
            (sums.mlm_nll / masked + nsp_loss).backward()
            nll += sums.mlm_nll.item()
            for master, weight in zip(masters.values(), model.parameters(), strict=True):
                master.grad += weight.grad.float()
                weight.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters.values(), model.parameters(), strict=True):
                weight.copy_(master)
        rows.append([nll, optimizer.grad_norm, *optimizer.metrics().values()])
    return rows, norms_of(optimizer), {name: each.detach() for name, each in masters.items()}


def norms_of(optimizer):
    """Squared norms of every parameter's gradient, weights and running mean."""
    tensors = [optimizer.tensors(kind) for kind in ("fp32", "exp_avg")]
    pieces = [[piece.of(each) for piece in optimizer.fragments] for each in tensors]
    return [optimizer.grad_squared_norms_P.tolist(), *optimizer.squared_norms(*pieces).tolist()]


def train_on_ranks(ranks, kind, stage, precision, chosen, is_trained=None, **settings):
    model = build_model(CONFIG, seed=3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained is None or is_trained(name, parameter.shape))
    optimizer = make_optimizer(model.named_parameters(), kind, **settings)
    engine = start_engine(model, optimizer, deepspeed_config(chosen, stage, precision), ranks)
    rows, collectives, sent, stops, orthogonalised = [], [], [], [], []
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for step in range(STEPS):
        batches = micro_batches(ranks.rank, step)
        counts = begin_to_agree(ranks, batches, 0.25 * ranks.rank)()
        must_stop = ranks.rank == 1 and step == 3
        reduced, exchanged = [], []
        with (
            count_calls("all_reduce", reduced),
            count_calls("all_to_all_single", exchanged),
            patch.object(muon, "orthogonalise", count_matrices(muon.orthogonalise, orthogonalised)),
        ):
            weight = NSP_WEIGHTS[dtype]
            sums = train_step(engine, ranks, batches, counts, weight, lambda stop=must_stop: stop)
        collectives.append(len(reduced))
        stops.append(sums[-1].item())
        sent.append([pieces.numel() for _, pieces, *_ in exchanged])
        rows.append([sums[0].item(), grad_norm(engine, optimizer), *optimizer.metrics().values()])
    held = iterate_weights(engine, ranks)
    weights = {name: weight.detach().float().clone() for name, weight in held}
    pieces = {piece.name: piece.numel for piece in optimizer.fragments}
    found = {"rows": rows, "norms": norms_of(optimizer), "counts": vars(counts), "pieces": pieces}
    found |= {"all_reduces": collectives, "sent": sent, "stops": stops}
    return found | {"orthogonalised": len(orthogonalised) / STEPS}, weights


def count_matrices(orthogonalise, shapes):
    """`orthogonalise`, which notes the shape of each matrix."""

    def count(matrix):
        shapes.append(matrix.shape)
        return orthogonalise(matrix)

    return count


def count_calls(name, calls):
    """Notes arguments of a collective that our modules call and wait for.

    DeepSpeed's own calls, and gradients that travel meanwhile, are not counted.
    """
    collective = getattr(torch.distributed, name)

    def count(*arguments, **options):
        is_ours = sys._getframe(1).f_globals["__name__"].startswith("trainer.")
        if is_ours and not options.get("async_op"):
            calls.append(arguments)
        return collective(*arguments, **options)

    return patch.object(torch.distributed, name, count)


def break_a_partition(ranks):
    """What start_engine says when partitions are not where the optimizer takes them to be."""
    model = build_model(CONFIG, seed=3)
    optimizer = make_optimizer(model.named_parameters(), "lamb")
    find = optimizer._find_fragments

    def shifted():
        for number, piece in enumerate(find()):
            yield dataclasses.replace(piece, owner_start=piece.owner_start + (number == 3))

    optimizer._find_fragments = shifted
    try:
        start_engine(model, optimizer, deepspeed_config({}, 2, "fp32"), ranks)
    except ValueError as error:
        return str(error)


def main(folder):
    ranks = start_ranks()
    results = {"world_size": ranks.world_size}
    for kind, stage, precision in RUNS[ranks.world_size]:
        found, weights = train_on_ranks(ranks, kind, stage, precision, {})
        results[f"{kind} {stage} {precision}"] = found
        torch.save(weights, folder / f"{kind}-{stage}-{precision}-{ranks.rank}.pt")
    small = {"zero_optimization": {"reduce_bucket_size": SMALL}}
    for kind in KINDS:
        results[f"{kind} in buckets"], _ = train_on_ranks(ranks, kind, 1, "fp32", small)
    for precision in ("fp32", "bf16"):
        freely = {"max_grad_norm": 0.0, "muon_precision": precision}
        for name, chosen in (("one bucket", {}), ("buckets", small)):
            found, weights = train_on_ranks(ranks, "muon", 2, "fp32", chosen, is_muons, **freely)
            results[f"unclipped muon {precision} in {name}"] = found
            torch.save(weights, folder / f"muon-{precision}-in-{name}-{ranks.rank}.pt")
    results["broken"] = break_a_partition(ranks)
    file = passed_to_deepspeed("configs/deepspeed/zero2-overlap.json")
    results["overlap"], _ = train_on_ranks(ranks, "adamw", 2, "fp32", file)
    try:
        with together(ranks):
            if ranks.rank == 1:
                Path("no-such-shard").read_bytes()
    except (ValueError, FileNotFoundError) as fault:
        results["fault"] = [type(fault).__name__, str(fault)]
    (folder / f"results-{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """Folder with the results of each launch, by number of ranks."""
    folders = {}
    for world_size in RUNS:
        folders[world_size] = tmp_path_factory.mktemp(f"engine-{world_size}")
        for process in run_ranks([__file__, str(folders[world_size])], world_size, timeout=600):
            assert process.returncode == 0, process.stderr
            assert process.stdout == "", "DeepSpeed's chatter reaches the user"
    return folders


@pytest.fixture(scope="module")
def alone():
    return {kind: train_alone(kind, torch.float32) for kind in KINDS}


def results_of(launches, rank=0, world_size=2):
    return json.loads((launches[world_size] / f"results-{rank}.json").read_text())


@pytest.mark.parametrize(
    ("world_size", "kind", "stage", "precision"), [each for each in ALL if each[3] == "fp32"]
)
def test_ranks_equal_one_big_batch(launches, alone, world_size, kind, stage, precision):
    """Loss, gradient norm and trust ratios of every step; norms and weights after 20."""
    rows, norms, weights = alone[kind]
    found = results_of(launches, 0, world_size)[f"{kind} {stage} {precision}"]
    compare(found, rows, norms)
    theirs = torch.load(launches[world_size] / f"{kind}-{stage}-{precision}-0.pt")
    for name, weight in weights.items():
        torch.testing.assert_close(theirs[name], weight, rtol=0, atol=1e-5)


def compare(found, rows, norms):
    our_rows, rows = torch.tensor(found["rows"]), torch.tensor(rows)
    torch.testing.assert_close(our_rows[0], rows[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(our_rows, rows, rtol=1e-5, atol=0)
    our_norms, norms = torch.tensor(found["norms"]), torch.tensor(norms)
    torch.testing.assert_close(our_norms, norms, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", RUNS)
def test_many_buckets_equal_one(launches, alone, world_size, kind):
    """Tensors are split in other places; the runs above have one bucket."""
    rows, norms, _ = alone[kind]
    compare(results_of(launches, 0, world_size)[f"{kind} in buckets"], rows, norms)


def test_zero_1_and_2_are_equal_to_the_last_bit(launches):
    results = results_of(launches)
    for run in (f"{kind} {{}} {precision}" for kind in KINDS for precision in ("fp32", "bf16")):
        assert results[run.format(1)]["rows"] == results[run.format(2)]["rows"]


LOSSES = {
    "adamw": [
        *(23.47232, 23.30904, 22.87611, 23.57806, 23.71817, 23.56298, 24.54160, 23.51961),
        *(22.90394, 23.67663, 21.52009, 22.88998, 24.93099, 22.91953, 22.57476, 23.59077),
        *(23.95228, 22.37028, 25.04509, 24.83729),
    ],
    "lamb": [
        *(23.47232, 23.27924, 23.22991, 23.50247, 23.55929, 23.52978, 23.75733, 23.45823),
        *(23.13656, 23.88622, 22.64602, 23.57110, 23.48584, 23.65332, 23.50711, 23.39464),
        *(23.05011, 23.82777, 23.54780, 23.13450),
    ],
    "muon": [
        *(23.47232, 23.30752, 22.87687, 23.59353, 23.69946, 23.48337, 24.56072, 23.68306),
        *(22.86895, 23.77014, 21.29728, 23.09140, 25.06413, 22.98666, 22.90333, 23.52150),
        *(23.28673, 22.63091, 24.73630, 24.59372),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_20_steps_are_what_they_were(alone, kind):
    """By the test above those of every ZeRO stage on two and three ranks are too."""
    assert [row[0] for row in alone[kind][0]] == pytest.approx(LOSSES[kind], rel=1e-4)


def test_all_ranks_see_the_same(launches):
    for world_size in RUNS:
        first, *others = (results_of(launches, rank, world_size) for rank in range(world_size))
        for run in ("{} {} {}".format(*each) for each in RUNS[world_size]):
            assert all(other[run]["rows"] == first[run]["rows"] for other in others)


@pytest.mark.parametrize(("world_size", "kind", "stage", "precision"), ALL)
def test_one_all_reduce_serves_clipping_norms_and_log(launches, world_size, kind, stage, precision):
    """LAMB needs a second one where the gradient is clipped, as norms of updates depend on it."""
    found = results_of(launches, 0, world_size)[f"{kind} {stage} {precision}"]
    are_clipped = [row[1] > MAX_GRAD_NORMS[kind] for row in found["rows"]]
    assert 3 <= sum(are_clipped) <= STEPS - 3
    twice = kind == "lamb" and stage > 0
    assert found["all_reduces"] == [1 + (twice and is_clipped) for is_clipped in are_clipped]


@pytest.mark.parametrize(("world_size", "kind", "stage", "precision"), ALL)
def test_all_ranks_hear_in_a_step_that_one_must_stop(launches, world_size, kind, stage, precision):
    """Rank 1 is told to stop while it makes the fourth step, and at no other time."""
    for rank in range(world_size):
        found = results_of(launches, rank, world_size)[f"{kind} {stage} {precision}"]
        assert found["stops"] == [float(step == 3) for step in range(STEPS)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_buckets_of_muon_change_no_bit_on_two_ranks(launches, precision):
    """Sums of two gradients have no order.

    A norm has, so nothing is clipped here. And torch's fused AdamW rounds the last elements of a
    tensor in another way than the others, so only matrices are trained.
    """
    results = results_of(launches)
    losses = []
    weights = []
    for name in ("one bucket", "buckets"):
        losses.append([row[0] for row in results[f"unclipped muon {precision} in {name}"]["rows"]])
        weights.append(torch.load(launches[2] / f"muon-{precision}-in-{name}-0.pt"))
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][-1]
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


@pytest.mark.parametrize(
    ("run", "bucket"), [("muon 2 fp32", BUCKET_ELEMENTS), ("muon in buckets", SMALL)]
)
@pytest.mark.parametrize("world_size", RUNS)
def test_each_part_of_a_split_matrix_travels_once_and_so_does_its_update(
    launches, world_size, run, bucket
):
    """To one rank, which alone orthogonalises the matrix."""
    ranks = [results_of(launches, rank, world_size)[run] for rank in range(world_size)]
    holders = Counter(name for rank in ranks for name in rank["pieces"])
    shapes = parameter_shapes(CONFIG)
    matrices = {name for name, shape in shapes.items() if is_muons(name, shape)}
    split = {name for name in matrices if holders[name] > 1}
    assert 0 < len(split) < world_size if run == "muon 2 fp32" else len(split) > world_size
    parts = [
        sum(numel for name, numel in rank["pieces"].items() if name in split) for rank in ranks
    ]
    assert [rank["sent"][0][0] for rank in ranks] == parts
    assert sum(rank["sent"][0][1] for rank in ranks) == sum(parts)
    assert all(rank["sent"] == [rank["sent"][0]] * STEPS for rank in ranks)
    assert sum(rank["orthogonalised"] for rank in ranks) == len(matrices)
    assert results_of(launches, 0, world_size)["adamw 2 fp32"]["sent"] == [[]] * STEPS


@pytest.mark.parametrize(
    ("run", "bucket"), [("muon 2 fp32", BUCKET_ELEMENTS), ("muon in buckets", SMALL)]
)
@pytest.mark.parametrize("world_size", RUNS)
def test_the_plan_knows_which_part_of_a_parameter_a_rank_updates(launches, world_size, run, bucket):
    shapes = parameter_shapes(CONFIG)
    found = find_parts([math.prod(shape) for shape in shapes.values()], bucket, world_size)
    for rank in range(world_size):
        expected = {
            name: parts[rank] for name, parts in zip(shapes, found, strict=True) if rank in parts
        }
        assert results_of(launches, rank, world_size)[run]["pieces"] == expected


def test_partitions_that_are_not_as_expected_stop_the_run_before_it_begins(launches):
    messages = [results_of(launches, rank)["broken"] for rank in range(2)]
    assert all("does not update the elements of bert." in message for message in messages)


def test_the_deepspeed_file_of_the_project_changes_nothing(launches):
    results = results_of(launches)
    assert results["overlap"]["rows"] == results["adamw 2 fp32"]["rows"]


@pytest.fixture(scope="module")
def alone_in_bf16():
    """With as many threads as a launched rank has: bf16 sums may depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = {kind: train_alone(kind, torch.bfloat16)[0] for kind in KINDS}
    torch.set_num_threads(before)
    return rows


@pytest.mark.parametrize(
    ("world_size", "kind", "stage", "precision"), [each for each in ALL if each[3] == "bf16"]
)
def test_ranks_in_bf16_equal_one_process_in_bf16(
    launches, alone_in_bf16, world_size, kind, stage, precision
):
    """To fp32's rounding, as gradients are summed and reduced in fp32.

    ZeRO-3 adds squares up in another order, and a weight's last bit in bf16 is some 0.2 % of it.
    """
    results = results_of(launches, 0, world_size)
    found = torch.tensor(results[f"{kind} {stage} {precision}"]["rows"])
    expected = torch.tensor(alone_in_bf16[kind])
    torch.testing.assert_close(found, expected, rtol=1e-5 if stage < 3 else 0.02, atol=0)


def test_ranks_agree_on_counts(launches):
    said = {"num_micro_batches": 2, "instances": 6, "tokens": 40, "most_tokens": 21}
    said["wait_seconds"] = 0.25
    for rank in range(2):
        assert results_of(launches, rank)["adamw 1 fp32"]["counts"].items() >= said.items()


def test_a_fault_of_one_rank_is_raised_on_all(launches):
    missing = "[Errno 2] No such file or directory: 'no-such-shard'"
    assert results_of(launches, 0)["fault"] == ["ValueError", f"rank 1: {missing}"]
    assert results_of(launches, 1)["fault"] == ["FileNotFoundError", missing]


def test_dropout_is_keyed_to_seed_phase_step_and_rank():
    def draw(*key):
        seed_dropout(*key)
        return tuple(torch.rand(4).tolist())

    keys = list(itertools.product((0, 7), (0, 1), (0, 1, 10), (0, 1, 10)))
    drawn = [draw(*key) for key in keys]
    assert len(set(drawn)) == len(keys), "every part of the key counts"
    assert [draw(*key) for key in keys] == drawn
    draw(7, 1, 2, 3)
    digest = hashlib.blake2b(b"7/dropout/1/2/3", digest_size=8).digest()
    assert torch.initial_seed() == int.from_bytes(digest, "little") // 2


def test_combinations_that_deepspeed_cannot_do_are_refused():
    with pytest.raises(ValueError, match="zero_stage 1 or 2"):
        deepspeed_config({}, 0, "bf16")


def test_deepspeed_partitions_alike_under_zero_1_and_2_and_sends_nothing():
    chosen = {"zero_optimization": {"overlap_comm": True}}
    first, second = (deepspeed_config(chosen, stage, "bf16") for stage in (1, 2))
    assert first == second
    assert first["zero_optimization"]["overlap_comm"] is False
    third = deepspeed_config(chosen, 3, "bf16")
    assert third["zero_optimization"]["overlap_comm"] is True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
