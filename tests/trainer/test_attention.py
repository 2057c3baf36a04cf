import pytest
import torch

from trainer.model.attention import attention, choose_backend
from trainer.model.packed_inputs import PackedInputs, padded_layout

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def sequences_of(lengths, device=CPU):
    """Inputs of which only the borders matter."""
    borders = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    return PackedInputs(*[torch.empty(0)] * 3, borders, max(lengths))


def random_qkv(num_tokens, *, heads=2, size=8, seed=0, dtype=torch.float32, device=CPU):
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randn(num_tokens, heads, size, generator=generator) for _ in range(3))
    return [draw.to(device=device, dtype=dtype).requires_grad_() for draw in draws]


def oracle(q_TAD, k_TAD, v_TAD, lengths, is_causal=False):
    """Softmax attention written out, one sequence at a time."""
    contexts = []
    for q, k, v in zip(*(each.split(lengths) for each in (q_TAD, k_TAD, v_TAD)), strict=True):
        scores = torch.einsum("qad,kad->aqk", q, k) / q.shape[-1] ** 0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
        contexts.append(torch.einsum("aqk,kad->qad", scores.softmax(-1), v))
    return torch.cat(contexts)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "lengths", [[5], [1, 1], [3, 40, 7, 64, 33, 12], [32, 32, 64], [100, 2], [2, 0, 3]]
)
def test_padded_equals_attention_written_out(lengths, is_causal):
    q, k, v = random_qkv(sum(lengths))
    context = attention(q, k, v, sequences_of(lengths), 0.0, "padded", is_causal)
    expected = oracle(q, k, v, lengths, is_causal)
    torch.testing.assert_close(context, expected, rtol=0, atol=2e-6)
    weights = torch.linspace(-1, 1, context.numel()).view_as(context)
    gradients = torch.autograd.grad((context * weights).sum(), (q, k, v))
    expected_gradients = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=2e-6)


def test_bf16_on_a_cpu_is_fp32_rounded_once():
    lengths = [3, 40, 7, 64]
    qkv = random_qkv(sum(lengths), size=64, dtype=torch.bfloat16)
    qkv_fp32 = [each.detach().float().requires_grad_() for each in qkv]
    context = attention(*qkv, sequences_of(lengths), 0.0, "padded")
    expected = attention(*qkv_fp32, sequences_of(lengths), 0.0, "padded")
    assert context.dtype == torch.bfloat16
    assert torch.equal(context, expected.bfloat16())
    gradients = torch.autograd.grad(context.float().sum(), qkv)
    expected_gradients = torch.autograd.grad(expected.sum(), qkv_fp32)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(found, wanted.bfloat16())


def test_layout_groups_rows_by_length():
    layout = padded_layout(sequences_of([30, 3, 64, 31]).cu_seqlens, row_step=32)
    found = [(each.start, each.num_rows, each.row_length) for each in layout.groups]
    assert found == [(0, 3, 32), (96, 1, 64)]
    assert layout.num_positions == 160
    expected = [*range(30), *range(32, 35), *range(96, 160), *range(64, 95)]
    assert layout.positions.tolist() == expected
    assert layout.groups[0].key_mask.sum(dim=-1).flatten().tolist() == [30, 3, 31]
    assert layout.groups[1].key_mask is None
    layout = padded_layout(sequences_of([40, 33]).cu_seqlens, row_step=32)
    assert layout.num_positions == 80, "no further"


def test_dropout_drops_probabilities_and_keeps_their_mean():
    """By 400 draws of one sequence."""
    qkv = [x.detach() for x in random_qkv(32, seed=1)]
    exact = attention(*qkv, sequences_of([32]), 0.0, "padded")
    copies, sequences = (x.repeat(400, 1, 1) for x in qkv), sequences_of([32] * 400)
    torch.manual_seed(0)
    draws = attention(*copies, sequences, 0.5, "padded").unflatten(0, (400, 32))
    assert (draws[0] - exact).abs().max() > 0.1
    assert (draws.mean(0) - exact).abs().max() < 0.1  # 4 standard errors


def test_auto_is_flash_where_it_can_run(monkeypatch):
    assert choose_backend("auto", CPU, torch.bfloat16) == "padded"
    said = r"flash needs .* found torch\.bfloat16 on cpu; choose .* padded or auto"
    with pytest.raises(ValueError, match=said):
        choose_backend("flash", CPU, torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    assert choose_backend("auto", CUDA, torch.bfloat16) == "flash"
    assert choose_backend("padded", CUDA, torch.bfloat16) == "padded"
    assert choose_backend("auto", CUDA, torch.float32) == "padded"
    with pytest.raises(ValueError, match=r"found torch\.float32 on cuda"):
        choose_backend("flash", CUDA, torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert choose_backend("auto", CUDA, torch.bfloat16) == "padded"


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernel_is_called_as_this_torch_declares_it(is_causal, monkeypatch):
    """On meta tensors: shapes and a backward, without a GPU."""
    monkeypatch.setattr("trainer.model.attention.choose_backend", lambda *_: "flash")
    meta = {"dtype": torch.bfloat16, "device": "meta", "requires_grad": True}
    q, k, v = (torch.empty(12, 2, 64, **meta) for _ in range(3))
    context = attention(q, k, v, sequences_of([5, 4, 3], "meta"), 0.1, "flash", is_causal)
    assert context.shape == q.shape
    context.sum().backward()
    assert q.grad.shape == k.grad.shape == v.grad.shape == q.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernel_equals_padded_on_a_gpu(is_causal):
    lengths = [5, 130, 64, 1, 512]
    sequences = sequences_of(lengths, CUDA)
    q, k, v = random_qkv(sum(lengths), size=64, dtype=torch.bfloat16, device=CUDA)
    both = ("flash", "padded")
    context, expected = (attention(q, k, v, sequences, 0.0, name, is_causal) for name in both)
    torch.testing.assert_close(context, expected, rtol=0, atol=2e-2)
    gradients = torch.autograd.grad(context.float().square().sum(), (q, k, v))
    expected_gradients = torch.autograd.grad(expected.float().square().sum(), (q, k, v))
    torch.testing.assert_close(gradients, expected_gradients, rtol=5e-2, atol=5e-2)
