"""New weights travel while the next step begins, and nobody reads one that has not arrived.

In these tests, a weight on its way is NaN until it is waited for. Run as a program, this file is
one of the ranks, which writes what it measured.
"""

import ast
import dataclasses
import hashlib
import json
import sys
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed
from torch import nn

from tests.trainer.tiny_dataset import write_tiny_dataset
from tests.trainer.tiny_run import BERT, SIZES, WITHOUT_DROPOUT, rows_of
from tests.trainer.two_ranks import ROOT, random_micro_batch, run_ranks
from trainer.engine import zero
from trainer.engine.deepspeed_config import deepspeed_config
from trainer.engine.gradients import GradientSums, cut_buckets
from trainer.engine.train_step import begin_to_agree, forward_sums, grad_norm, train_step
from trainer.engine.weights import WeightGathers
from trainer.engine.zero import iterate_weights, start_engine
from trainer.guards import weights_check
from trainer.guards.weights_check import CorruptWeightsError
from trainer.model.bert import build_model, compile_model
from trainer.model.config import ModelSettings
from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.optim.muon import Muon
from trainer.optim.settings import OptimizerSettings
from trainer.pretrain import loop
from trainer.pretrain.run import open_run
from trainer.process.ranks import start_ranks, stop_ranks
from trainer.runs import run_folder
from trainer.settings import (
    CheckpointSettings,
    Phase,
    PretrainSettings,
    SafetySettings,
    ValidationSettings,
    resolve,
)

CONFIG = dataclasses.replace(BERT, **WITHOUT_DROPOUT)
CPU = torch.device("cpu")
BUCKETS = {"zero_optimization": {"reduce_bucket_size": 2_000}}
ENGINES = {
    1: [(AdamW, 1, "bf16")],
    2: [
        (AdamW, 1, "fp32"), (AdamW, 2, "fp32"), (AdamW, 1, "bf16"), (AdamW, 2, "bf16"),
        (Lamb, 1, "fp32"), (Lamb, 2, "bf16"), (Muon, 1, "fp32"), (Muon, 2, "bf16"),
    ],
    3: [(AdamW, 2, "fp32"), (Lamb, 1, "bf16"), (Muon, 2, "fp32")],
}  # fmt: skip
"""Optimizers, ZeRO stages and precisions by number of ranks."""
MICRO_BATCHES = [2, 1, 0]
"""How many micro-batches each rank has, so that ranks make empty passes as well."""
TRAINED = [("adamw", 1, "fp32"), ("lamb", 2, "bf16")]
STEPS = 8
STOP = 3
"""The step after which the first launch of a run is told to stop."""


def late(gather, destination, piece, async_op=False):
    """An all-gather whose destination is NaN until somebody waits; ranks have other NaNs."""
    if not async_op:
        return gather(destination, piece)
    values = torch.empty_like(destination)
    gather(values, piece)
    memory = destination.data  # what arrives is written without autograd's knowledge
    memory.fill_(torch.nan)
    if torch.distributed.get_rank():
        memory.neg_()
    return SimpleNamespace(wait=lambda: memory.copy_(values))


def patch_gathers():
    gather = torch.distributed.all_gather_into_tensor
    return patch.object(torch.distributed, "all_gather_into_tensor", partial(late, gather))


def train_engine(ranks, kind, stage, precision, waits):
    """Losses and norms of some steps, and a hash of the weights after the last one."""
    model = build_model(CONFIG, seed=3)
    optimizer = kind(model.named_parameters())
    optimizer.set_learning_rate(0.01)
    engine = start_engine(model, optimizer, deepspeed_config(BUCKETS, stage, precision), ranks)
    rows = []
    with nullcontext() if waits else patch_gathers():
        for step in range(3):
            seed = 100 * step + 10 * ranks.rank
            count = MICRO_BATCHES[ranks.rank]
            batches = [random_micro_batch([7, 5], 50, seed + i) for i in range(count)]
            counts = begin_to_agree(ranks, batches, 0.0)()
            sums = train_step(engine, ranks, batches, counts, waits_for_weights=waits)
            rows.append([*sums.tolist(), grad_norm(engine, optimizer)])
        names = {name for name, _ in iterate_weights(engine, ranks)}
        assert len(names) == (len(list(model.parameters())) if ranks.rank == 0 else 0)
    return [rows, hash_of(model.parameters())]


def hash_of(tensors):
    return hashlib.sha256(
        b"".join(tensor.detach().float().numpy().tobytes() for tensor in tensors)
    ).hexdigest()


def pretrain(ranks, output, data, optimizer, stage, precision, num_launches=2, **safety):
    """Trains a run that is told to stop, then continued; what it logged and what it saved."""
    phase = Phase(seq_len=16, global_batch=12, steps=STEPS, peak_lr=0.02, warmup_steps=1)
    settings = PretrainSettings(
        data=[str(data)],
        output=str(output),
        phases=[phase],
        model=ModelSettings("tiny", SIZES),
        optimizer=OptimizerSettings(name=optimizer),
        micro_tokens=48,
        zero_stage=stage,
        precision=precision,
        validation=ValidationSettings(interval=4),
        checkpoint=CheckpointSettings(interval=2, keep=9),
        safety=SafetySettings(**{"weights_interval": 3, **safety}),
    )
    for launch in range(num_launches):
        run = open_run(resolve(settings), BUCKETS, ranks)
        if launch == 0:
            run.stops_before = partial(ask_to_stop, run)
        with closing(run):
            while not run.is_finished and not run.must_stop:
                loop.train_phase(run)
            run.saver.finish()
        for lock in run_folder._held:
            lock.close()
        run_folder._held.clear()
    saved = sorted(output.glob("checkpoints/*/*.safetensors"))
    columns = ("step", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "grad_norm")
    rows = [*rows_of(output), *rows_of(output, "validation")]
    return {
        "rows": [[row.get(column) for column in columns] for row in rows],
        "files": {
            f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
            for path in saved
        },
    }


def ask_to_stop(run, rank_step):
    """Makes no rank stop before a step; asks one of them to stop during step STOP."""
    if run.position.step == STOP - 1 and run.ranks.rank == 1:
        run.stop.make()
    return False


def open_without_waiting(engine):
    return engine.module


def leave_out(wait):
    """Replaces one of the places that wait for weights by nothing."""
    return {
        "forward passes": patch.object(WeightGathers, "_before_forward", lambda *_: None),
        "checkpoints": patch.object(zero, "current_model", open_without_waiting),
        "weights check": patch.object(weights_check, "current_model", open_without_waiting),
    }[wait]


LEFT_OUT = {
    "forward passes": {},
    "checkpoints": {"weights_interval": 0},
    "weights check": {"weights_interval": 2},
}
"""Places that wait, and settings with which no other place waits just before them."""


def compare_runs(ranks, folder):
    """What runs log and save if a step waits for all weights, and if weights are late."""

    def step_and_wait(*arguments, **options):
        return train_step(*arguments, **{**options, "waits_for_weights": True})

    waiting = patch.object(loop, "train_step", step_and_wait)
    data = folder / "data"
    results = {}
    for case in TRAINED:
        name = " ".join(map(str, case))
        with waiting:
            plain = pretrain(ranks, folder / f"{name} waits", data, *case)
        with patch_gathers():
            results[name] = [plain, pretrain(ranks, folder / f"{name} late", data, *case)]
    for wait, safety in LEFT_OUT.items():
        with ExitStack() as stack:
            stack.enter_context(patch_gathers())
            stack.enter_context(leave_out(wait))
            try:
                output = folder / f"without {wait}"
                results[wait] = pretrain(ranks, output, data, *TRAINED[0], 1, **safety)
            except (ValueError, CorruptWeightsError) as error:
                results[wait] = {"error": f"{type(error).__name__}: {error}"}
    return results


def main(folder):
    ranks = start_ranks()
    results = {
        f"{kind.__name__} {stage} {precision}": [
            train_engine(ranks, kind, stage, precision, waits) for waits in (True, False)
        ]
        for kind, stage, precision in ENGINES[ranks.world_size]
    }
    if ranks.world_size == 2:
        results |= compare_runs(ranks, folder)
    (folder / f"{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What every rank of 1, 2 and 3 has measured."""
    found = {}
    for world_size in ENGINES:
        folder = tmp_path_factory.mktemp(f"weights-{world_size}")
        write_tiny_dataset(folder / "data")
        for process in run_ranks([__file__, str(folder)], world_size):
            assert process.returncode == 0, process.stderr
        found[world_size] = [
            json.loads((folder / f"{rank}.json").read_text()) for rank in range(world_size)
        ]
    return found


@pytest.mark.engines
@pytest.mark.parametrize(
    ("world_size", "kind", "stage", "precision"),
    [(size, *case) for size, cases in ENGINES.items() for case in cases],
)
def test_weights_that_arrive_late_change_no_bit(results, world_size, kind, stage, precision):
    """Of losses, norms and weights, beside steps that wait for all weights."""
    for rank in results[world_size]:
        waiting, late = rank[f"{kind.__name__} {stage} {precision}"]
        assert waiting == late


@pytest.mark.engines
@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_a_run_that_is_stopped_and_continued_reads_no_weight_too_early(results, case):
    """Not in validation, checkpoints, checks of the weights, after a stop or at the end."""
    waiting, late = results[2][0][" ".join(map(str, case))]
    assert [row[0] for row in late["rows"]] == [*range(1, STEPS + 1), 4, STEPS]
    steps = {name.partition("/")[0] for name in late["files"]}
    assert steps == {f"step-{step:08}" for step in (2, STOP, 4, 6, STEPS)}
    assert late == waiting


@pytest.mark.engines
@pytest.mark.parametrize("wait", LEFT_OUT)
def test_each_wait_that_is_left_out_is_noticed(results, wait):
    """Otherwise the tests above could not fail."""
    _, right = results[2][0][" ".join(map(str, TRAINED[0]))]
    found = results[2][0][wait]
    if wait == "weights check":
        assert "changed by themselves" in found["error"]
    else:
        wrong = {
            name: hash for name, hash in found["files"].items() if hash != right["files"][name]
        }
        assert wrong


class TwoRanks:
    """Stands for two ranks, of which this is the first; the other one sends what is there."""

    def __init__(self, monkeypatch):
        self.begun = []
        self.arrived = []
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(torch.distributed, "all_gather_into_tensor", self.gather)

    def gather(self, destination, piece, async_op):
        number = len(self.begun)
        self.begun.append(destination.numel())
        work = late(lambda values, _: values.copy_(destination), destination, piece, async_op)
        return SimpleNamespace(wait=lambda: (self.arrived.append(number), work.wait()))


def gathers_of(model, bucket_elements, blocks):
    """The gathers of a model whose weights are cut into buckets of two pieces each."""
    groups = cut_buckets(list(model.parameters()), bucket_elements)
    flats = []
    for group in groups:
        numel = sum(parameter.numel() for parameter in group)
        flat = torch.zeros(numel + numel % 2)
        place = 0
        for parameter in group:
            part = flat.narrow(0, place, parameter.numel()).view_as(parameter)
            part.copy_(parameter.data)
            parameter.data = part
            place += parameter.numel()
        flats.append(flat)
    partitions = [flat[: len(flat) // 2].clone() for flat in flats]
    gathers = WeightGathers(SimpleNamespace(owned=partitions), groups, flats)
    gathers.guard(model, blocks)
    return gathers


def test_gathers_begin_with_the_weights_that_are_read_first(monkeypatch):
    two_ranks = TwoRanks(monkeypatch)
    model = nn.Sequential(*(nn.Linear(size, size, bias=False) for size in (2, 4, 6)))
    gathers_of(model, 1, list(model)).start()
    assert two_ranks.begun == [4, 16, 36]
    assert two_ranks.arrived == []


def test_a_block_waits_for_its_own_weights_and_those_before_it(monkeypatch):
    two_ranks = TwoRanks(monkeypatch)
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4)))
    gathers = gathers_of(model, 4, list(model))
    gathers.start()
    model[0](torch.ones(2))
    assert two_ranks.arrived == [0]
    model[2](torch.ones(2))
    assert two_ranks.arrived == [0, 1, 2]
    assert model[3].weight.isnan().all()
    gathers.finish()
    assert two_ranks.arrived == [0, 1, 2, 3]
    assert not model[3].weight.isnan().any()


def test_a_block_whose_weights_are_in_two_buckets_waits_for_both(monkeypatch):
    two_ranks = TwoRanks(monkeypatch)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    gathers_of(model, 4, list(model)).start()
    assert two_ranks.begun == [4, 2, 4, 2]
    model[0](torch.ones(2))
    assert two_ranks.arrived == [0, 1]


def test_weights_outside_of_all_blocks_are_waited_for_first(monkeypatch):
    """A module that somebody adds to a model and forgets to name is late, and right."""
    two_ranks = TwoRanks(monkeypatch)
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    gathers_of(model, 4, [model[0], model[1]]).start()
    assert not model(torch.ones(2)).isnan().any()
    assert two_ranks.arrived == [0, 1, 2]


def test_a_gather_waits_for_the_one_before_it(monkeypatch):
    two_ranks = TwoRanks(monkeypatch)
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    gathers = gathers_of(model, 4, [])
    gathers.start()
    gathers.start()
    assert two_ranks.arrived == [0]
    gathers.finish()
    assert two_ranks.arrived == [0, 1]


def test_frozen_weights_are_never_waited_for(monkeypatch):
    two_ranks = TwoRanks(monkeypatch)
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    gathers = WeightGathers(
        SimpleNamespace(owned=[torch.ones(2)]), [[model[1].weight]], [model[1].weight.data.view(-1)]
    )
    gathers.guard(model, list(model))
    gathers.start()
    model[0](torch.ones(2))
    assert two_ranks.arrived == []


def test_backward_passes_and_steps_begin_when_all_weights_are_there(monkeypatch):
    """Also on a rank that makes no pass, and if a parameter is in no forward pass."""
    two_ranks = TwoRanks(monkeypatch)
    monkeypatch.setattr(torch.distributed, "all_gather", None)
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    gathers = gathers_of(model, 4, list(model))
    optimizer = SimpleNamespace(is_partitioned=False)
    arrived = []
    engine = SimpleNamespace(
        backward=lambda *_, **__: arrived.append(list(two_ranks.arrived)),
        step=lambda: arrived.append(list(two_ranks.arrived)),
    )
    gradients = GradientSums(engine, optimizer, [], gathers)
    gathers.start()
    gradients.backward(torch.zeros(()), is_last=False)
    gathers.start()
    gradients.step(waits_for_weights=False)
    gathers.start()
    assert arrived == [[0], [0, 1]]
    gradients.step()
    assert two_ranks.arrived == [0, 1, 2]


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_bert_waits_for_every_weight_just_in_time(monkeypatch, pre_norm, recompute):
    """Every weight is a bucket of its own, and every block waits for no weight after it."""
    model = build_model(dataclasses.replace(CONFIG, pre_norm=pre_norm), seed=1)
    model.bert.recompute_layers = recompute
    batch = random_micro_batch([7, 5], 50, 0)
    expected = forward_sums(model, batch, CPU)
    two_ranks = TwoRanks(monkeypatch)
    gathers_of(model, 1, model.blocks()).start()
    seen = []
    for block in model.blocks():
        block.register_forward_pre_hook(lambda *_: seen.append(len(two_ranks.arrived)))
    found = forward_sums(model, batch, CPU)
    assert [value.item() for value in found] == [value.item() for value in expected]
    num_weights = [len(list(block.parameters())) for block in model.blocks()]
    assert seen == [sum(num_weights[: number + 1]) for number in range(len(num_weights))]
    assert seen[-1] == len(list(model.parameters()))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_waits_outside_of_its_graphs(monkeypatch):
    import torch._dynamo.utils

    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    model = build_model(CONFIG, seed=1).train()
    compile_model(model)
    TwoRanks(monkeypatch)
    gathers = gathers_of(model, 1, model.blocks())
    for seed in range(3):
        batch = random_micro_batch([7, 5 + seed], 50, seed)
        expected = forward_sums(model, batch, CPU)
        gathers.start()
        found = forward_sums(model, batch, CPU)
        assert [value.item() for value in found] == [value.item() for value in expected]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 5
    assert not torch._dynamo.utils.counters["graph_break"]
    torch.compiler.reset()


def test_nobody_but_current_model_takes_the_model_of_an_engine():
    """Whoever reads weights between steps goes through it, because it waits for them."""
    readers = {"module", "parameters", "named_parameters", "state_dict", "named_modules"}
    places = []
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in readers:
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                if owner.strip("_") == "engine":
                    places.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert places == ["trainer/engine/zero.py: engine.module"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
