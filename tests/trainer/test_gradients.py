"""What a step sends, when it is sent, and that what arrives is the sum of all ranks' gradients.

Run as a program, this file is one of two ranks, which writes what it measured.
"""

import dataclasses
import json
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from tests.trainer.tiny_run import BERT, WITHOUT_DROPOUT
from tests.trainer.two_ranks import random_micro_batch, run_ranks
from trainer.engine.deepspeed_config import MOST_ON_THE_WAY, deepspeed_config
from trainer.engine.gradients import (
    GradientSums,
    cut_buckets,
    reached_parameters,
    whole_buckets,
)
from trainer.engine.muon_costs import count_muon_costs
from trainer.engine.train_step import begin_to_agree, forward_sums, train_step
from trainer.engine.zero import start_engine
from trainer.model.bert import build_model
from trainer.optim.adamw import AdamW
from trainer.optim.muon import Muon
from trainer.optim.settings import OptimizerSettings
from trainer.preflight.communication import add_exchanges, count_traffic
from trainer.process.ranks import start_ranks, stop_ranks

CONFIG = dataclasses.replace(BERT, **WITHOUT_DROPOUT)
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all_single", "broadcast",
    "reduce", "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip
LARGE = 512
"""Collectives of fewer bytes carry counts, norms and losses."""


def half_muon(parameters):
    """Muon that orthogonalises in bf16."""
    return Muon(parameters, OptimizerSettings(name="muon", muon_precision="bf16"))


CASES = {
    "0 fp32": (AdamW, 0, "fp32"),
    "1 fp32": (AdamW, 1, "fp32"),
    "2 fp32": (AdamW, 2, "fp32"),
    "1 bf16": (AdamW, 1, "bf16"),
    "2 bf16": (AdamW, 2, "bf16"),
    "muon 1 bf16": (Muon, 1, "bf16"),
    "muon 2 fp32": (half_muon, 2, "fp32"),
    "3 bf16": (AdamW, 3, "bf16"),
}
BUCKET = 2_000
EXCHANGE = "all_to_all_single"
"""Muon's collective, which carries parts of matrices and of their updates."""
MICRO_BATCHES = {"one": [1, 1], "three": [3, 1], "none on rank 1": [2, 0]}
"""How many micro-batches each of the two ranks has."""


def micro_batches(rank, count):
    return [random_micro_batch([7, 5], 50, 10 * rank + i) for i in range(count)]


def data_bytes(argument):
    """Bytes of a tensor or a list of tensors, 0 for anything else."""
    if isinstance(argument, torch.Tensor):
        return argument.numel() * argument.element_size()
    return sum(map(data_bytes, argument)) if isinstance(argument, list) else 0


def bytes_to_others(received, sent, incoming, outgoing):
    """Bytes that an all-to-all sends to other ranks."""
    kept = outgoing[torch.distributed.get_rank()]
    return (sent.numel() - kept) * sent.element_size()


def record_calls(calls, passes):
    """Notes each large collective: its name, its bytes, and the backward pass it was made in."""
    import deepspeed.comm

    depth = 0

    def recording(module, name):
        collective = getattr(module, name)

        def record(*arguments, **options):
            nonlocal depth
            # The data of all ranks, which is more than what one rank sends or receives.
            size = max(map(data_bytes, (*arguments, *options.values())))
            if name == "all_to_all_single":
                size = bytes_to_others(*arguments)
            if size >= LARGE and not depth:
                calls.append([name, size, passes.current])
            depth += 1
            try:
                return collective(*arguments, **options)
            finally:
                depth -= 1

        return patch.object(module, name, record)

    with ExitStack() as stack:
        # DeepSpeed keeps some of torch's functions, so they are noted where it calls its own.
        for module in (torch.distributed, deepspeed.comm):
            for name in COLLECTIVES:
                stack.enter_context(recording(module, name))
        return stack.pop_all()


def count_calls(ranks, kind, stage, precision):
    """The large collectives of steps after the first one, by the numbers of micro-batches."""
    model = build_model(CONFIG, seed=3)
    optimizer = kind(model.named_parameters())
    optimizer.set_learning_rate(0.01)
    chosen = {"zero_optimization": {"reduce_bucket_size": BUCKET}}
    engine = start_engine(model, optimizer, deepspeed_config(chosen, stage, precision), ranks)
    backward = engine.backward
    passes = SimpleNamespace(made=0, current=None)

    def note_pass(*arguments, **options):
        passes.made += 1
        passes.current = passes.made
        backward(*arguments, **options)
        passes.current = None

    engine.backward = note_pass
    batches = micro_batches(ranks.rank, 1)
    train_step(engine, ranks, batches, begin_to_agree(ranks, batches, 0.0)())
    found = {}
    for name, counts_of_ranks in MICRO_BATCHES.items():
        for nsp_weight in (1.0, 0.0):
            batches = micro_batches(ranks.rank, counts_of_ranks[ranks.rank])
            counts = begin_to_agree(ranks, batches, 0.0)()
            calls = []
            passes.made = 0
            with record_calls(calls, passes):
                train_step(engine, ranks, batches, counts, nsp_weight)
            found[f"{name} {nsp_weight}"] = calls
    sizes = [parameter.numel() for parameter in optimizer.parameters]
    return {"calls": found, "elements": sum(sizes), "groups": len(optimizer.param_groups)}


def sum_apart(ranks, precision):
    """Each rank's sums of its gradients in fp32, by name, added up by a gather."""
    model = build_model(CONFIG, seed=3)
    if precision == "bf16":
        model.bfloat16()
    batches = micro_batches(ranks.rank, 3)
    counts = begin_to_agree(ranks, batches, 0.0)()
    sums = {name: torch.zeros(weight.shape) for name, weight in model.named_parameters()}
    for batch in batches:
        losses = forward_sums(model, batch, torch.device("cpu"))
        (losses.mlm_nll / counts.masked + losses.nsp_nll / counts.instances).backward()
        for name, weight in model.named_parameters():
            sums[name] += weight.grad
            weight.grad = None
    for total in sums.values():
        parts = [torch.empty_like(total) for _ in range(ranks.world_size)]
        torch.distributed.all_gather(parts, total)
        total.copy_(sum(parts))
    return sums


def find_differences(ranks, stage, precision, bucket):
    """Parameters of which this rank's optimizer gets another gradient than `sum_apart` says."""
    expected = sum_apart(ranks, precision)
    model = build_model(CONFIG, seed=3)
    optimizer = AdamW(model.named_parameters())
    chosen = {"zero_optimization": {"reduce_bucket_size": bucket}}
    engine = start_engine(model, optimizer, deepspeed_config(chosen, stage, precision), ranks)
    different = []

    def compare(*_):
        gradients = optimizer.pieces([tensor.grad for tensor in optimizer.owned])
        for fragment, gradient in zip(optimizer.fragments, gradients, strict=True):
            whole = expected[fragment.name].view(-1)
            if not torch.equal(gradient, whole.narrow(0, fragment.start, fragment.numel)):
                different.append(fragment.name)

    optimizer.register_step_pre_hook(compare)
    batches = micro_batches(ranks.rank, 3)
    train_step(engine, ranks, batches, begin_to_agree(ranks, batches, 0.0)())
    return [different, len(optimizer.fragments)]


def main(folder):
    ranks = start_ranks()
    results = {name: count_calls(ranks, *case) for name, case in CASES.items()}
    results["differences"] = {
        f"{stage} {precision} {bucket}": find_differences(ranks, stage, precision, bucket)
        for stage, precision in ((0, "fp32"), (1, "fp32"), (1, "bf16"), (2, "bf16"))
        for bucket in (BUCKET, 10**9)
    }
    (folder / f"{ranks.rank}.json").write_text(json.dumps(results))
    stop_ranks()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    for process in run_ranks([__file__, str(folder)], 2):
        assert process.returncode == 0, process.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def bytes_of(calls):
    """Bytes by collective."""
    counter = Counter()
    for name, size, _ in calls:
        counter[name] += size
    return dict(counter)


@pytest.mark.engines
@pytest.mark.parametrize(
    ("case", "sent", "gathered"),
    [
        ("1 fp32", 4, 4), ("2 fp32", 4, 4), ("1 bf16", 4, 2), ("2 bf16", 4, 2),
        ("muon 1 bf16", 4, 2), ("muon 2 fp32", 4, 4),
    ],
)  # fmt: skip
def test_a_step_sends_every_gradient_and_weight_once(results, case, sent, gathered):
    """6 bytes a parameter in bf16, for any number of micro-batches; each bucket is padded."""
    for rank_results in results:
        found = rank_results[case]
        assert found["groups"] > 5
        for calls in found["calls"].values():
            elements = found["elements"]
            sizes = bytes_of(calls)
            assert (EXCHANGE in sizes) == case.startswith("muon")
            assert sizes.keys() - {EXCHANGE} == {"reduce_scatter_tensor", "all_gather_into_tensor"}
            padded = sizes["reduce_scatter_tensor"] // sent
            assert sizes["reduce_scatter_tensor"] == sent * padded
            assert sizes["all_gather_into_tensor"] == gathered * padded
            assert elements <= padded < elements + 4 * found["groups"]


@pytest.mark.engines
def test_without_zero_a_step_sends_every_gradient_once(results):
    """An all-reduce sends what it is given twice."""
    for rank_results in results:
        found = rank_results["0 fp32"]
        for calls in found["calls"].values():
            assert bytes_of(calls) == {"all_reduce": 4 * found["elements"]}


@pytest.mark.engines
@pytest.mark.parametrize("case", [case for case in CASES if case != "3 bf16"])
def test_the_plan_counts_the_bytes_of_a_step(results, case):
    """Of two ranks each sends half of what a collective is given, and an all-reduce twice that."""
    kind, stage, precision = CASES[case]
    found = results[0][case]
    for name, counts in MICRO_BATCHES.items():
        sizes = bytes_of(found["calls"][f"{name} 1.0"])
        exchanged = sizes.pop(EXCHANGE, 0)
        sent = sum(size * (2 if name == "all_reduce" else 1) for name, size in sizes.items()) / 2
        traffic = count_traffic(CONFIG, stage, precision, 2, max(counts))
        assert traffic.total_bytes == pytest.approx(sent, abs=8 * 4 * found["groups"])
        if exchanged:
            costs = count_muon_costs(CONFIG, stage, 2, BUCKET)
            muon_precision = "fp32" if kind is Muon else "bf16"
            traffic = add_exchanges(traffic, costs, muon_precision)
            assert traffic.exchanged_bytes == exchanged


@pytest.mark.engines
@pytest.mark.parametrize("case", CASES)
def test_all_ranks_make_the_same_collectives(results, case):
    first, second = (
        {step: [name for name, *_ in calls] for step, calls in rank_results[case]["calls"].items()}
        for rank_results in results
    )
    assert first == second


@pytest.mark.engines
@pytest.mark.parametrize("case", [case for case in CASES if case != "3 bf16"])
@pytest.mark.parametrize("name", MICRO_BATCHES)
def test_buckets_are_sent_during_the_last_backward_pass(results, case, name):
    """All of them, with or without a head that gets no gradient."""
    last = max(MICRO_BATCHES[name])
    for rank_results in results:
        calls = rank_results[case]["calls"]
        for nsp_weight in (1.0, 0.0):
            of_gradients = [
                call
                for call in calls[f"{name} {nsp_weight}"]
                if call[0] not in ("all_gather_into_tensor", EXCHANGE)
            ]
            assert len(of_gradients) > 5
            assert {backward_pass for _, _, backward_pass in of_gradients} == {last}


@pytest.mark.engines
@pytest.mark.parametrize("case", ["muon 1 bf16", "muon 2 fp32"])
def test_muon_exchanges_split_matrices_twice_after_all_passes(results, case):
    """All of them at once, between the last gradients and the first weights."""
    for rank_results in results:
        for calls in rank_results[case]["calls"].values():
            names = [name for name, *_ in calls]
            first = names.index(EXCHANGE)
            assert names[first : first + 2] == [EXCHANGE, EXCHANGE]
            assert set(names[:first]) == {"reduce_scatter_tensor"}
            assert set(names[first + 2 :]) == {"all_gather_into_tensor"}
            assert calls[first][2] is None, "no backward pass is under way"


@pytest.mark.engines
def test_gradients_are_the_sums_of_both_ranks_to_the_last_bit(results):
    for rank_results in results:
        for case, (different, num_compared) in rank_results["differences"].items():
            assert num_compared > 10, case
            assert different == [], case


def test_buckets_are_filled_from_the_last_parameter_on():
    sizes = [30, 4, 4, 4, 9, 2]
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    buckets = cut_buckets(parameters, 10)
    assert [[len(parameter) for parameter in bucket] for bucket in buckets] == [
        [2], [9], [4, 4], [4], [30],
    ]  # fmt: skip
    assert buckets[2][0] is parameters[2]
    [whole] = cut_buckets(parameters, 53)
    assert all(ours is theirs for ours, theirs in zip(whole, parameters, strict=True))


def test_a_loss_reaches_only_the_parameters_it_depends_on():
    used, tied, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    loss = (used * tied * frozen + tied).sum()
    assert reached_parameters(loss) == {used, tied}
    assert unused not in reached_parameters(loss)
    assert reached_parameters(torch.zeros(())) == set()


class Wire:
    """Stands for the collectives of two ranks with equal gradients: sums arrive when waited for."""

    def __init__(self, monkeypatch):
        self.log = []
        self.num_on_the_way = 0
        self.most_on_the_way = 0
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "all_reduce", self.all_reduce)

    def all_reduce(self, tensor, async_op):
        assert async_op
        self.log.append(f"send {tensor.tolist()}")
        self.num_on_the_way += 1
        self.most_on_the_way = max(self.most_on_the_way, self.num_on_the_way)

        def wait():
            self.num_on_the_way -= 1
            tensor.mul_(2)

        return SimpleNamespace(wait=wait)


class Engine:
    """Stands for DeepSpeed's engine without ZeRO."""

    def __init__(self, wire, parameters):
        self.wire = wire
        self.parameters = parameters
        self.seen = None

    def backward(self, loss, scale_wrt_gas):
        assert not scale_wrt_gas
        loss.backward()
        self.wire.log.append("backward")

    def step(self):
        self.seen = [parameter.grad.tolist() for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None


def open_sums(monkeypatch, count):
    """Sums of some parameters of one element, each in a bucket, and what they talk to."""
    wire = Wire(monkeypatch)
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(count)]
    engine = Engine(wire, parameters)
    buckets = whole_buckets(cut_buckets(parameters, 1))
    return GradientSums(engine, SimpleNamespace(is_partitioned=False), buckets), engine, wire


def chain(parameters):
    """A loss whose backward pass computes the gradients of parameters from the last to the first.

    The gradient of parameter i is i + 1.
    """

    class Link(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, parameter, gradient):
            ctx.gradient = gradient
            return value + parameter

        @staticmethod
        def backward(ctx, grad):
            return grad, torch.full((1,), ctx.gradient), None

    value = torch.zeros(1, requires_grad=True)
    for number, parameter in enumerate(parameters, start=1):
        value = Link.apply(value, parameter, float(number))
    return value.sum()


def test_sums_leave_in_the_last_pass_and_the_optimizer_gets_totals(monkeypatch):
    gradients, engine, wire = open_sums(monkeypatch, 3)
    gradients.backward(chain(engine.parameters), is_last=False)
    assert wire.log == ["backward"]
    gradients.backward(chain(engine.parameters), is_last=True)
    assert wire.log == ["backward", "send [6.0]", "send [4.0]", "send [2.0]", "backward"]
    gradients.step()
    assert engine.seen == [[4.0], [8.0], [12.0]]


def test_two_buckets_at_most_are_on_the_way(monkeypatch):
    gradients, engine, wire = open_sums(monkeypatch, 7)
    gradients.backward(chain(engine.parameters), is_last=True)
    gradients.step()
    assert wire.most_on_the_way == MOST_ON_THE_WAY == 2
    assert wire.num_on_the_way == 0
    assert engine.seen == [[2.0 * number] for number in range(1, 8)]


def test_a_bucket_that_is_full_early_waits_for_its_turn(monkeypatch):
    """Ranks that compute gradients in different orders must send in one order."""
    gradients, engine, wire = open_sums(monkeypatch, 3)
    gradients.backward(chain(engine.parameters[::-1]), is_last=True)
    assert wire.log == ["send [1.0]", "send [2.0]", "send [3.0]", "backward"]


def test_a_parameter_without_gradient_holds_nothing_up(monkeypatch):
    gradients, engine, wire = open_sums(monkeypatch, 3)
    gradients.backward(chain(engine.parameters[:2]), is_last=True)
    assert wire.log == ["send [0.0]", "send [2.0]", "send [1.0]", "backward"]
    gradients.step()
    assert engine.seen == [[2.0], [4.0], [0.0]]


def test_a_parameter_with_a_gradient_in_an_earlier_pass_alone_keeps_it(monkeypatch):
    gradients, engine, _ = open_sums(monkeypatch, 3)
    gradients.backward(chain(engine.parameters), is_last=False)
    gradients.backward(chain(engine.parameters[:1]), is_last=True)
    gradients.step()
    assert engine.seen == [[4.0], [4.0], [6.0]]


def test_a_rank_without_a_backward_pass_sends_zeros(monkeypatch):
    gradients, engine, wire = open_sums(monkeypatch, 2)
    gradients.step()
    assert wire.log == ["send [0.0]", "send [0.0]"]
    assert engine.seen == [[0.0], [0.0]]


def test_a_pass_that_fails_leaves_nothing_in_the_next_step(monkeypatch):
    gradients, engine, wire = open_sums(monkeypatch, 2)
    gradients.backward(chain(engine.parameters), is_last=False)

    def fail(loss, scale_wrt_gas):
        Engine.backward(engine, loss, scale_wrt_gas)
        raise RuntimeError("out of memory")

    engine.backward = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        gradients.backward(chain(engine.parameters), is_last=True)
    assert wire.num_on_the_way == 0
    del engine.backward
    gradients.backward(chain(engine.parameters), is_last=True)
    gradients.step()
    assert engine.seen == [[2.0], [4.0]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
