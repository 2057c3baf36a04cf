"""The optimizers without DeepSpeed: equal to torch's, timm's LAMB and the formulas.

timm-lamb.json holds weights as timm.optim.Lamb left them after `lamb_steps` with its flags.
"""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.optim.muon import Muon, orthogonalise
from trainer.optim.owners import choose_owners, orthogonalising_flops
from trainer.optim.settings import OptimizerSettings, Schedule

TIMM = Path(__file__).with_name("timm-lamb.json")
TIMM_SHAPES = {"dense.weight": (6, 5), "dense.bias": (6,)}
TIMM_SHAPES |= {"head.weight": (3, 6), "head.norm.weight": (3,)}


def stepped(kind, weights, gradients, rate=0.1, **settings):
    """An optimizer after one step, and its parameters by name."""
    parameters = {name: torch.nn.Parameter(torch.tensor(each)) for name, each in weights.items()}
    optimizer = kind(parameters.items(), OptimizerSettings(**settings))
    optimizer.set_learning_rate(rate)
    for name, gradient in gradients.items():
        parameters[name].grad = torch.tensor(gradient)
    optimizer.step()
    return optimizer, parameters


def test_without_bias_correction_the_first_step_follows_google():
    weights, gradients = {"dense.weight": [[1.0, -2.0]]}, {"dense.weight": [[0.5, 0.25]]}
    settings = {"bias_correction": False, "max_grad_norm": 0.0}
    _, found = stepped(AdamW, weights, gradients, **settings)
    places = zip((1.0, -2.0), (0.5, 0.25), found["dense.weight"][0].tolist(), strict=True)
    for start, gradient, now in places:
        update = 0.1 * gradient / (math.sqrt(0.001 * gradient**2) + 1e-6) + 0.01 * start
        assert now == pytest.approx(start - 0.1 * update, rel=1e-5)


def values(shape, start, scale):
    """Numbers that every machine makes alike."""
    numbers = [scale * math.sin(start + 0.7 * index) for index in range(math.prod(shape))]
    return torch.tensor(numbers).view(shape)


def lamb_steps(optimizer, parameters):
    """Weights after each step; every third gradient is small enough not to be clipped."""
    for step in range(1, 21):
        for number, (name, parameter) in enumerate(parameters.items()):
            scale = 0.05 if step % 3 == 0 else 0.5
            parameter.grad = values(TIMM_SHAPES[name], 10 * step + number, scale)
        optimizer.step()
        yield {name: each.detach().flatten().tolist() for name, each in parameters.items()}


def test_lamb_equals_timms():
    weights = {name: values(shape, len(name), 0.4) for name, shape in TIMM_SHAPES.items()}
    parameters = {name: torch.nn.Parameter(weight) for name, weight in weights.items()}
    optimizer = Lamb(parameters.items())
    optimizer.set_learning_rate(0.02)
    written, norms = json.loads(TIMM.read_text())["weights"], []
    for found, expected in zip(lamb_steps(optimizer, parameters), written, strict=True):
        norms.append(optimizer.grad_norm)
        for name, weights in expected.items():
            assert found[name] == pytest.approx(weights, rel=0, abs=1e-6)
    assert min(norms) < 1.0 < max(norms)


def test_lambs_first_step_worked_by_hand():
    """Bias-corrected, the direction is the gradient's sign: norm sqrt(2), the ratio 5 / sqrt(2)."""
    weights = {"dense.weight": [[3.0, 4.0]], "dense.bias": [2.0], "of zeros.weight": [[0.0, 0.0]]}
    gradients = {"dense.weight": [[0.5, -0.25]], "dense.bias": [-0.1]}
    gradients["of zeros.weight"] = [[0.3, -0.3]]  # which take Adam's step
    optimizer, found = stepped(Lamb, weights, gradients, weight_decay=0.0, eps=0.0)
    ratio = 5 / math.sqrt(2)
    assert optimizer.trust_ratios_P.tolist() == pytest.approx([ratio, 1.0, 1.0])
    expected = [3.0 - 0.1 * ratio, 4.0 + 0.1 * ratio, 2.1, -0.1, 0.1]
    assert torch.cat([each.flatten() for each in found.values()]).tolist() == pytest.approx(
        expected
    )


@pytest.mark.parametrize(("kind", "precision"), [(AdamW, None), (Muon, "fp32"), (Muon, "bf16")])
def test_equals_torchs_with_the_same_decay(monkeypatch, kind, precision):
    """Of 20 steps, the gradient clipped in each; torch's Muon always rounds matrices to bf16."""
    chosen = OptimizerSettings(weight_decay=0.1)
    if kind is Muon:
        chosen = replace(chosen, name="muon", muon_precision=precision)
    if precision == "fp32":
        monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    shapes = {"bert.layers.0.query.weight": (6, 10), "bert.layers.0.output.weight": (10, 4)}
    shapes |= {"bert.layers.0.query.bias": (6,), "mlm_head.transform.weight": (6, 6)}
    ours, theirs = (
        {name: torch.nn.Parameter(values(shape, len(name), 0.4)) for name, shape in shapes.items()}
        for _ in range(2)
    )
    optimizer = kind(ours.items(), chosen)
    optimizer.set_learning_rate(0.02)
    *matrices, bias, head = theirs.values()
    adamw = partial(torch.optim.AdamW, lr=0.02, eps=1e-6, weight_decay=0.1)
    muon = partial(torch.optim.Muon, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    of_matrices = muon if kind is Muon else adamw
    peers = [of_matrices(matrices), adamw([bias], weight_decay=0.0), adamw([head])]
    torch.manual_seed(0)
    for _ in range(20):
        for name, shape in shapes.items():
            ours[name].grad = torch.randn(shape)
            theirs[name].grad = ours[name].grad.clone()
        optimizer.step()
        assert torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0) > 1.0
        for peer in peers:
            peer.step()
    for mine, peer in zip(ours.values(), theirs.values(), strict=True):
        torch.testing.assert_close(mine, peer, rtol=0, atol=1e-6)


def test_the_least_busy_holder_owns_a_matrix():
    """Whole matrices stay where they are; of the split ones, the most expensive is given first."""
    shapes = {0: (8, 8), 1: (8, 8), 2: (8, 32), 3: (8, 8), 4: (8, 8)}
    holders = {0: [0], 1: [0, 1], 2: [1, 2], 3: [2, 3], 4: [3, 4, 5]}
    # Matrix 2 takes as long as three others.
    assert 3 * orthogonalising_flops((8, 8)) == orthogonalising_flops((32, 8))
    assert choose_owners(holders, shapes) == {0: 0, 2: 1, 1: 0, 3: 2, 4: 3}
    assert choose_owners({}, {}) == {}


def test_the_operations_of_orthogonalising_are_those_torch_counts():
    for shape in ((6, 10), (10, 4), (7, 7)):
        with FlopCounterMode(display=False) as counter:
            orthogonalise(torch.randn(shape))
        assert counter.get_total_flops() == orthogonalising_flops(shape)


def test_schedule_warms_up_and_decays_to_zero():
    schedule = Schedule(steps=10, warmup_steps=4, peak_lr=1.0)
    rates = [schedule.learning_rate(step) for step in range(11)]
    assert rates == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0, *(n / 6 for n in (5, 4, 3, 2, 1, 0))])


def test_schedule_powers_and_end():
    assert Schedule(10, 0, 1.0, power=2.0).learning_rate(5) == pytest.approx(0.25)
    assert Schedule(10, 0, 1.0, power=0.0).learning_rate(9) == 1.0
    assert Schedule(10, 0, 1.0, end_lr=0.1).learning_rate(10) == pytest.approx(0.1)
    assert Schedule(10, 10, 1.0).learning_rate(10) == 1.0


def test_only_muon_has_a_precision_of_muon():
    for name in ("adamw", "lamb"):
        with pytest.raises(
            ValueError, match=f"muon_precision is bf16, but optimizer.name is {name}"
        ):
            OptimizerSettings(name=name, muon_precision="bf16")


DEEPSPEEDS = {
    "WarmupLR": {"power": 0.0},
    "WarmupDecayLR": {},
    "WarmupCosineLR": {"decay_form": "cosine"},
}


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("kind", DEEPSPEEDS)
def test_schedules_are_those_of_deepspeed_at_every_step(kind, form):
    """A file for DeepSpeed trains by the rates of DeepSpeed's own classes, past the end too."""
    from deepspeed.runtime import lr_schedules

    for peak, start, low, warmup, steps, more in [
        (1e-3, 0.0, 0.0, 1_000, 3_000, 5),
        (4e-4, 2e-5, 1e-5, 7, 50, 5),
        (0.02, 0.0, 0.0, 2, 9, 5),
        (0.02, 0.01, 0.001, 9, 9, 0),  # all of it is warm-up
    ]:
        given = {"warmup_num_steps": warmup, "warmup_type": form}
        if kind == "WarmupCosineLR":
            given |= {"warmup_min_ratio": start / peak, "cos_min_ratio": low / peak}
        else:
            given |= {"warmup_min_lr": start, "warmup_max_lr": peak}
        given |= {} if kind == "WarmupLR" else {"total_num_steps": steps}
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
        theirs = getattr(lr_schedules, kind)(optimizer, **given)
        end = {"WarmupLR": 0.0, "WarmupDecayLR": start, "WarmupCosineLR": low}[kind]
        forms = {"start_lr": start, "end_lr": end, "warmup_form": form}
        ours = Schedule(steps, warmup, peak, **forms, **DEEPSPEEDS[kind])
        for step in range(steps + more):
            theirs.step()
            expected = pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-18)
            assert ours.learning_rate(step) == expected


def test_a_logarithmic_warm_up_of_one_step_begins_at_its_start():
    rates = [Schedule(4, 1, 1.0, warmup_form="log").learning_rate(step) for step in range(2)]
    assert rates == [0.0, 1.0]
