import re

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.shards.dataset import open_dataset
from tests.trainer.tiny_dataset import random_block, write_tiny_dataset
from trainer.engine.train_step import forward_sums
from trainer.model.bert import BertForPreTraining, build_model
from trainer.model.config import (
    Lengths,
    ModelSettings,
    num_parameters,
    parameter_shapes,
    preset,
    training_flops,
)
from trainer.preflight.plan import describe_plan, measure_lengths, memory_case, plan_phase
from trainer.preflight.settings import PlanSettings
from trainer.settings import Phase
from trainer.stream.batches.pack import pack_micro_batches
from trainer.stream.order.source import one_dataset

WIRE = [
    "wire: within a node NVLink, 450 GB/s for every GPU; between 2 nodes of 8"
    " 100 Gbit/s Ethernet, one port for a node",
    "phase  micro-batches  GB sent  ms computing  ms on the wire  ms a step  waiting  limit",
    "    1              1    0.025          0.00            2.35       2.35     100%  the wire",
    "  sent by a rank in phase 1: 4 bytes a parameter of gradients and 2 of weights, times 15/16",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tiny_dataset(tmp_path_factory.mktemp("plan") / "data", seq_lens=(32,))


def settings_of(**changes):
    phases = [Phase(seq_len=32, global_batch=64, steps=100, peak_lr=1e-3)]
    return PlanSettings(**{"phases": phases, "model": ModelSettings("tiny"), **changes})


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("name", ["tiny", "small", "base", "large"])
def test_parameters_are_those_of_the_model(name, pre_norm):
    config = preset(name, vocab_size=1_000, pre_norm=pre_norm)
    with torch.device("meta"):
        model = BertForPreTraining(config)
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    assert list(parameter_shapes(config).items()) == shapes
    assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("seq_len", "masked", "gigaflops"), [(128, 20, 1.880), (512, 76, 1.992)])
def test_operations_of_bert_large(seq_len, masked, gigaflops):
    flops = training_flops(preset("large"), Lengths(seq_len, seq_len**2, masked))
    assert flops / seq_len / 1e9 == pytest.approx(gigaflops, abs=0.0006)


def test_operations_are_those_torch_counts():
    config = preset("mini", vocab_size=3_000, attention_backend="padded")
    block = random_block(np.random.default_rng(0), 1, 128, 3_000)  # one, so that nothing is padded
    [batch] = pack_micro_batches(block, [(0, 1)])
    with FlopCounterMode(display=False) as counter:
        sums = forward_sums(build_model(config, 0), batch, torch.device("cpu"))
        (sums.mlm_nll + sums.nsp_nll).backward()
    # The count has pooler and NSP head too, the formula 3 products where the first layer makes 2.
    expected = training_flops(config, measure_lengths(block))
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_a_phase_of_a_dataset(data):
    dataset = open_dataset(str(data))
    config = preset("tiny", vocab_size=dataset.manifest.vocab_size)
    settings = settings_of(world_size=2, gpu="a100", precision="bf16", micro_tokens=128)
    [phase] = settings.phases
    found = plan_phase(phase, config, one_dataset(dataset), settings)
    assert found.instances == 6_400
    assert found.instances_per_pass == sum(
        each.instances for each in dataset.shards("train", 32, 0)
    )
    assert found.step.computing == pytest.approx(32 * found.flops / (312e12 * 0.4))
    assert found.seconds == pytest.approx(100 * (found.step.computing + found.step.wire))
    assert found.flops < plan_phase(phase, config, (), settings).flops  # instances are not full


def test_memory_is_said_by_name():
    """The stages as a table, and every term of the one that is chosen."""
    settings = settings_of(gpu="cpu", world_size=1, peak_tflops=0.05, micro_tokens=1_024)
    text = "\n".join(describe_plan(settings))
    assert re.search(r"^     1 +0\.12 +0\.10 +0\.22  <- zero_stage$", text, re.MULTILINE)
    assert "held: weights 0.02, fp32 weights 0.02, moments 0.04, checkpoint copies 0.05" in text
    assert "in a step, fullest in its loss: activations 0.03, gradients 0.02, logits 0.06" in text


def test_the_wire_is_said_in_words():
    """What a step sends, what limits it, the batch that mends it, and hours by ranks and link."""
    settings = settings_of(world_size=16, link="100gbe", compare=[1, 16], precision="bf16")
    lines = list(describe_plan(settings))
    start = next(number for number, line in enumerate(lines) if line.startswith("wire: "))
    assert lines[start : start + 4] == WIRE
    assert re.fullmatch(r"  phase 1 waits less than 10% of a step from a .*", lines[start + 4])
    assert lines[start + 5] == "hours by number of h200 and link between nodes of 8:"
    assert lines[start + 6].split() == ["nvlink", "ndr", "400gbe", "100gbe"]
    assert [line.split()[0] for line in lines[start + 7 : start + 9]] == ["1", "16"]
    assert not any("wire" in line for line in describe_plan(settings_of(world_size=1)))


def test_masks_drawn_anew_count():
    static, drawn = settings_of(), settings_of(masking="0.5-0.1")
    config = preset("tiny")
    phases = [plan_phase(each.phases[0], config, (), each) for each in (static, drawn)]
    assert [each.lengths.masked for each in phases] == pytest.approx([0.15 * 32, 0.3 * 32])
    cases = [memory_case(each, config, phases, 1) for each in (static, drawn)]
    assert [each.masked_share for each in cases] == [0.15, 0.5]
    assert "masking: 0.5-0.1" in list(describe_plan(drawn))


def test_the_memory_of_zero_3_is_that_of_a_model_that_is_not_compiled():
    settings = settings_of()
    config = preset("tiny")
    phases = [plan_phase(settings.phases[0], config, (), settings)]
    cases = [memory_case(settings, config, phases, stage) for stage in (1, 2, 3)]
    assert [case.is_compiled for case in cases] == [True, True, False]


def test_warnings(data):
    text = "\n".join(describe_plan(settings_of(data=[str(data)], world_size=1, micro_tokens=64)))
    assert "warning: phase 1 reads the 2 pass(es) of L32" in text
    assert "times over" in text
    few = settings_of(data=[str(data)], world_size=1, steps=[1], micro_tokens=1 << 20)
    text = "\n".join(describe_plan(few))
    assert "warning: phase 1 reads 1 of the 2 passes of L32" in text


def test_steps_for_epochs(data):
    phases = [Phase(32, 64, steps, 1e-3) for steps in (90, 10)]
    settings = settings_of(data=[str(data)], phases=phases, epochs=40.0)
    text = "\n".join(describe_plan(settings))
    # 40 epochs of 450 instances are 281 steps of 64, nine tenths of them in the first phase.
    assert "steps are those of 40 epochs: pretrain --epochs 40, or --steps 253 28" in text
    assert re.search(r"^    1 +32 +253 +16,192 .* 36\.0 ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 40.0}, "epochs are passes over a dataset; give --data"),
        ({"epochs": 0.0, "data": ["data"]}, "epochs is 0.0; give a number above 0"),
        ({"epochs": 40.0, "data": ["data"], "steps": [7]}, "epochs decides the steps"),
        ({"epochs": 40.0, "data": ["data"], "follow": True}, "give --steps with follow"),
        ({"epochs": 40.0, "data": ["data"], "budget_hours": 3.0}, "leave steps and budget_h"),
        ({"world_size": 0}, "world_size is 0; it must be at least 1"),
        (
            {"data": ["data"], "phases": [Phase(64, 64, 1, 1e-3)]},
            "no train instances of seq_len 64",
        ),
        ({"phases": [Phase(1_024, 64, 1, 1e-3)]}, "the model reads 512 tokens; raise model.overr"),
        ({"storage_options": "{"}, "storage_options is not a JSON object"),
        ({"gpu": "cpu"}, "no data sheet is known for a CPU; give --peak_tflops"),
    ],
)
def test_what_does_not_fit_is_refused(data, monkeypatch, wrong, message):
    monkeypatch.chdir(data.parent)
    with pytest.raises(ValueError, match=message):
        list(describe_plan(settings_of(**wrong)))
