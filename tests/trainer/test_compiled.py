"""torch.compile and activation checkpointing: the same gradients, and few graphs."""

import dataclasses
from functools import partial

import pytest
import torch
import torch._dynamo.utils

from tests.trainer.two_ranks import random_micro_batch
from trainer.engine.train_step import forward_sums
from trainer.model.bert import build_model, compile_model
from trainer.model.config import BertConfig
from trainer.stream.batches.pack import empty_micro_batch

# torch itself looks at it while it compiles, and hides the warning but where warnings are errors.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)

CONFIG = BertConfig(
    vocab_size=60, hidden_size=32, num_layers=3, num_heads=2, intermediate_size=48,
    max_position_embeddings=128, hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
CPU = torch.device("cpu")


def lengths_of(step):
    """One to nine sequences of 8 to 128 tokens, most of them short."""
    generator = torch.Generator().manual_seed(step)
    count = int(torch.randint(1, 10, (1,), generator=generator))
    return (8 + 120 * torch.rand(count, generator=generator).square()).long().tolist()


def gradients_of(model, batch):
    sums = forward_sums(model, batch, CPU)
    loss = sums.mlm_nll / max(1, len(batch.masked_labels)) + sums.nsp_nll
    model.zero_grad()
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.fixture
def compile_for_tests(monkeypatch):
    """Graphs are captured and differentiated as always, and run without generated code."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("pre_norm", [False, True])
def test_24_steps_of_real_lengths_compile_at_most_5_graphs(compile_for_tests, pre_norm):
    config = dataclasses.replace(CONFIG, pre_norm=pre_norm, hidden_dropout=0.1)
    compile_model(model := build_model(config, seed=1).train())
    shapes = set()
    for step in range(24):
        batch = random_micro_batch(lengths_of(step), 60, step) if step % 12 else empty_micro_batch()
        shapes.add(len(batch.input_ids))
        gradients_of(model, batch)
        if step % 8 == 0:
            with torch.no_grad():
                forward_sums(model.eval(), batch, CPU)
                model.train()
    assert len(shapes) > 18
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 5
    assert not torch._dynamo.utils.counters["graph_break"]
    assert model.state_dict().keys() == build_model(config, seed=1).state_dict().keys()


def test_compiled_passes_equal_plain_ones(compile_for_tests):
    plain, compiled = (build_model(CONFIG, seed=1).train() for _ in range(2))
    compile_model(compiled)
    for seed in range(3):
        batch = random_micro_batch(lengths_of(seed), 60, seed)
        both = [gradients_of(model, batch) for model in (compiled, plain)]
        torch.testing.assert_close(*both, rtol=1e-4, atol=1e-5)


def test_recomputed_layers_give_equal_gradients():
    config = dataclasses.replace(CONFIG, hidden_dropout=0.3, attention_dropout=0.3)
    plain, thrifty = build_model(config, seed=1).train(), build_model(config, seed=1).train()
    thrifty.bert.recompute_layers = True
    for batch in (random_micro_batch([30, 7, 90], 60, 0), empty_micro_batch()):
        torch.manual_seed(4)
        expected = gradients_of(plain, batch)
        torch.manual_seed(4)
        torch.testing.assert_close(gradients_of(thrifty, batch), expected, rtol=0, atol=0)


def test_recomputed_layers_are_not_kept():
    """Bytes kept for the backward pass, the weights aside."""
    model, kept = build_model(CONFIG, seed=1).train(), {False: 0, True: 0}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        is_weight = tensor.untyped_storage().data_ptr() in weights
        kept[model.bert.recompute_layers] += 0 if is_weight else tensor.nbytes
        return tensor

    for model.bert.recompute_layers in kept:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            forward_sums(model, random_micro_batch([100, 90, 80], 60, 0), CPU)
    assert kept[True] < kept[False] / 4
