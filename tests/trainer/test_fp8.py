"""Products in FP8: those of the rounded operands, in training alone; what cannot run is refused."""

import pytest
import torch

from tests.trainer.two_ranks import random_micro_batch
from trainer.engine.train_step import forward_sums
from trainer.model import fp8
from trainer.model.bert import build_model
from trainer.model.config import BertConfig
from trainer.model.fp8 import fp8_linear, quantize
from trainer.stream.packing import empty_micro_batch

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 128, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_largest_number_becomes_the_largest_of_the_format():
    small, scale = quantize(torch.tensor([[3.5, -7.0], [0.875, 0.0]]), torch.float8_e4m3fn)
    assert small.float().tolist() == [[224.0, -448.0], [56.0, 0.0]]
    assert float(scale) == 7 / 448
    small, scale = quantize(
        torch.tensor([[2.0**-40, 2.0**-41]], dtype=torch.bfloat16), torch.float8_e5m2
    )
    assert small.float().tolist() == [[57_344.0, 28_672.0]], (
        "gradients that e5m2 has no numbers for"
    )
    assert float(scale) == pytest.approx(2.0**-40 / 57_344)


def test_zeros_stay_zeros_and_what_is_not_finite_is_not_hidden():
    small, scale = quantize(torch.zeros(2, 3), torch.float8_e4m3fn)
    assert small.float().abs().sum() == 0
    assert 0 < float(scale) < 1e-30
    for value in (float("nan"), float("inf")):
        inputs = torch.ones(2, 16)
        inputs[1, 3] = value
        assert not fp8_linear(inputs, torch.ones(16, 16)).isfinite().all()


@pytest.mark.parametrize("num_tokens", [1, 7, 16, 50])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_products_and_gradients_are_those_of_the_rounded_operands(num_tokens, dtype, bound):
    inputs, weight = (
        normal(num_tokens, 32).to(dtype).requires_grad_(),
        normal(48, 32, seed=1).to(dtype).requires_grad_(),
    )
    gradient = (1e-5 * normal(num_tokens, 48, seed=2)).to(dtype)
    bias = normal(48, seed=3).to(dtype).requires_grad_()
    made = fp8_linear(inputs, weight, bias)
    made.backward(gradient)

    def rounded(tensor, kind):
        small, scale = quantize(tensor.detach(), kind)
        return small.double() * scale.double()

    x, w = rounded(inputs, torch.float8_e4m3fn), rounded(weight, torch.float8_e4m3fn)
    g = rounded(gradient, torch.float8_e5m2)
    pairs = (
        (made, x @ w.T + bias),
        (inputs.grad, g @ w),
        (weight.grad, g.T @ x),
        (bias.grad, gradient.double().sum(0)),
    )
    for found, expected in pairs:
        assert found.dtype == dtype
        assert (found.double() - expected).norm() <= bound * expected.norm()
    assert 0.005 < (x - inputs).norm() / inputs.norm() < 0.05, (
        "e4m3 has three bits behind the point"
    )


def gradients_of(model, batch):
    sums = forward_sums(model, batch, CPU)
    model.zero_grad()
    (sums.mlm_nll / max(1, len(batch.masked_labels)) + sums.nsp_nll).backward()
    return sums.mlm_nll.detach(), torch.cat(
        [each.grad.flatten() for each in model.bert.layers.parameters()]
    )


@pytest.mark.parametrize("pre_norm", [False, True])
def test_a_model_trains_near_the_plain_one_and_evaluates_as_it(pre_norm):
    plain, small = (
        build_model(BertConfig(**SIZES, pre_norm=pre_norm, fp8=each), seed=1)
        for each in (False, True)
    )
    assert small.state_dict().keys() == plain.state_dict().keys()
    batch = random_micro_batch([20, 9, 33], 60, 0)
    (loss, gradient), (expected_loss, expected) = (
        gradients_of(small.train(), batch),
        gradients_of(plain.train(), batch),
    )
    assert 0 < abs(loss - expected_loss) < 0.01 * expected_loss
    assert 0.01 < (gradient - expected).norm() / expected.norm() < 0.15
    assert torch.equal(gradients_of(small.eval(), batch)[1], gradients_of(plain.eval(), batch)[1])


def test_a_rank_without_instances_reaches_every_weight():
    model = build_model(BertConfig(**SIZES, fp8=True), seed=1).train()
    assert gradients_of(model, empty_micro_batch())[1].abs().sum() == 0


def test_a_gpu_without_fp8_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    with pytest.raises(
        ValueError,
        match=r"fp8 needs a GPU of compute capability 8\.9 or later, found 8\.0; set it to f",
    ):
        fp8.check_device(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    fp8.check_device(torch.device("cuda"))
    fp8.check_device(CPU)
