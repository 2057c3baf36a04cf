"""Whether a device computes what the CPU does: attention back ends, the whole model, attention dropout.

Shapes: T tokens, A heads, D head size.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainer.engine.train_step import forward_sums
from trainer.model.attention import PackedSequences, attention, choose_backend
from trainer.model.bert import build_model, compile_model
from trainer.model.config import BertConfig, preset
from trainer.model.fp8 import fp8_linear, quantize
from trainer.stream.packing import MicroBatch

CPU = torch.device("cpu")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ATTENTION_BOUND = (
    1e-2  # relative to the norm: bf16 has 8 bits, inputs and output are rounded once each
)
GRADIENT_BOUND = 2e-2
MODEL_BOUND = 5e-2  # of gradients after two layers, each rounded several times
FP8_BOUND = 1e-2  # beside the same rounded operands: what is left is bf16 and the sums on the way
FP8_MODEL_BOUND = 2e-1  # of gradients whose operands have 3 and 2 bits behind the point
KEPT_SIGMAS = 5.0
KEPT_STEP = 1 / 256  # flash attention draws bytes: of 0.9 it keeps 230 of 256, 0.8984
CHECK_SECONDS = 60  # of one check: compiling for a GPU takes 20 s of a core
LENGTHS = (128, 1, 77, 512, 3, 300)
HEADS, HEAD_SIZE = 4, 64


def check_all(device: torch.device, compiled: bool) -> Iterator[dict[str, Any]]:
    """Rows of name, value, bound, passed; all back ends that the device has.

    Args:
        device: What is held to the CPU.
        compiled: Also with the model compiled.
    """
    checks: list[partial[Iterator[dict[str, Any]]]] = []
    for backend in backends_of(device):
        checks += [
            partial(check_attention, device, backend, is_causal) for is_causal in (False, True)
        ]
        if backend != "varlen":
            checks.append(partial(check_dropout, device, backend))
    checks += [
        partial(check_model, device, backend, is_compiled=False) for backend in backends_of(device)
    ]
    if compiled:
        checks.append(partial(check_model, device, "auto", is_compiled=True))
        checks.append(partial(check_model, device, "auto", is_compiled=True, fused_sums=True))
    checks.append(partial(check_fp8, device))
    checks += [
        partial(check_model, device, "auto", is_compiled=each, fp8=True)
        for each in {False, compiled}
    ]
    checks.append(
        partial(check_model, device, "auto", is_compiled=False, fused_qkv=True, padded_vocab=True)
    )
    checks.append(partial(check_model, device, "auto", is_compiled=False, fused_sums=True))
    if "triton" in backends_of(device):
        checks.append(partial(check_model, device, "triton", is_compiled=compiled, fused_qkv=True))
    for check in checks:
        try:
            with alarm(CHECK_SECONDS):
                yield from check()
        except Exception as error:  # noqa: BLE001 - the other checks, and the measurements, go on
            name = " ".join(map(str, [check.func.__name__, *check.args[1:], *check.keywords]))
            yield row(name, float("inf"), 0.0) | {
                "error": f"{type(error).__name__}: {error}".splitlines()[0][:400]
            }


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Ends what takes longer by a TimeoutError, at the next line of Python; only the main thread can have one."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def backends_of(device: torch.device) -> list[str]:
    """Back ends that run there in bf16."""
    return ["padded"] + (
        ["varlen", "flash", "triton"]
        if choose_backend("auto", device, torch.bfloat16, 0.0) != "padded"
        else []
    )


def check_attention(
    device: torch.device, backend: str, is_causal: bool
) -> Iterator[dict[str, Any]]:
    """Context and gradients in bf16 on the device against fp64 on the CPU, without dropout."""
    generator = torch.Generator().manual_seed(3)
    shape = (sum(LENGTHS), HEADS, HEAD_SIZE)
    inputs = [torch.randn(shape, generator=generator).bfloat16() for _ in range(4)]
    results = []
    for where, dtype, how in ((device, torch.bfloat16, backend), (CPU, torch.float64, "padded")):
        q, k, v, weights = (each.to(where, dtype) for each in inputs)
        tensors = [each.requires_grad_() for each in (q, k, v)]
        context = attention(q, k, v, sequences_of(LENGTHS, where), 0.0, how, is_causal)
        results.append([context.detach(), *torch.autograd.grad((context * weights).sum(), tensors)])
    causal = " causal" if is_causal else ""
    for name, found, expected in zip(("values", "dq", "dk", "dv"), *results, strict=True):
        bound = ATTENTION_BOUND if name == "values" else GRADIENT_BOUND
        yield row(
            f"attention {backend}{causal} {name} against fp64", distance(found, expected), bound
        )


def check_dropout(
    device: torch.device, backend: str, dropout: float = 0.1
) -> Iterator[dict[str, Any]]:
    """What attention dropout leaves, read off: equal scores and values of unit vectors give the mask itself."""
    size = HEAD_SIZE
    q = torch.zeros(size, HEADS, size, device=device, dtype=torch.bfloat16)
    v = (
        torch.eye(size, device=device, dtype=torch.bfloat16)[:, None]
        .expand(-1, HEADS, -1)
        .contiguous()
    )
    v.requires_grad_()
    sequences = sequences_of((size,), device)
    kept_sum, count, is_two_valued, worst_gradient = 0.0, 0, True, 0.0
    for draw in range(40):
        torch.manual_seed(draw)
        context_TAD = attention(q, q, v, sequences, dropout, backend)
        weights = torch.randn(context_TAD.shape, generator=torch.Generator().manual_seed(draw)).to(
            v
        )
        (found,) = torch.autograd.grad((context_TAD * weights).sum(), v)
        probabilities = (
            context_TAD.detach().float() * size * (1 - dropout)
        )  # 1 where kept, 0 where dropped
        kept = probabilities > 0.5
        is_two_valued &= bool(((probabilities - kept.float()).abs() < 0.02).all())
        expected = torch.einsum("qak,qad->kad", context_TAD.detach().float(), weights.float())
        worst_gradient = max(worst_gradient, distance(found, expected))
        kept_sum, count = kept_sum + float(kept.sum()), count + kept.numel()
    sigma = (dropout * (1 - dropout) / count) ** 0.5
    name = f"attention {backend} dropout {dropout}"
    off = abs(kept_sum / count - (1 - dropout))
    yield row(f"{name}: share kept, off by", off, KEPT_STEP + KEPT_SIGMAS * sigma)
    yield row(f"{name}: entries neither 0 nor 1 / (1 - p)", float(not is_two_valued), 0.0)
    yield row(f"{name}: gradient through the same mask", worst_gradient, GRADIENT_BOUND)
    torch.manual_seed(7)
    first = attention(q, q, v, sequences, dropout, backend)
    torch.manual_seed(7)
    again = attention(q, q, v, sequences, dropout, backend)
    yield row(f"{name}: differences under one seed", float((first != again).sum()), 0.0)


def check_model(
    device: torch.device, backend: str, is_compiled: bool, **fields: bool
) -> Iterator[dict[str, Any]]:
    """Loss and gradients of a two-layer model in bf16 on the device against fp32 on the CPU, same weights."""
    config = preset("tiny", vocab_size=1_000, hidden_dropout=0.0, attention_dropout=0.0)
    batch = random_batch(LENGTHS, config.vocab_size)
    results = []
    for where, dtype, how in ((device, torch.bfloat16, backend), (CPU, torch.float32, "padded")):
        chosen = fields if where == device else {}
        model = build_model(
            BertConfig(**{**vars(config), "attention_backend": how, **chosen}), seed=1
        )
        model = model.to(where, dtype).train()
        if is_compiled and dtype == torch.bfloat16:
            compile_model(model)
        sums = forward_sums(model, batch, where)
        loss = sums.mlm_nll / len(batch.masked_labels) + sums.nsp_nll / len(batch.is_random_next)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        results.append(
            (loss.detach(), torch.cat([each.float().cpu().flatten() for each in gradients]))
        )
    how = " ".join([backend, *(["compiled"] if is_compiled else []), *fields])
    (loss, gradient), (expected_loss, expected_gradient) = results
    yield row(f"model {how} loss against fp32", distance(loss, expected_loss), ATTENTION_BOUND)
    bound = FP8_MODEL_BOUND if "fp8" in fields else MODEL_BOUND
    yield row(f"model {how} gradient against fp32", distance(gradient, expected_gradient), bound)


def check_fp8(device: torch.device) -> Iterator[dict[str, Any]]:
    """A product in FP8 and its gradients on the device, against fp64 products of the same rounded operands."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((sum(LENGTHS), 256), (384, 256), (sum(LENGTHS), 384))
    inputs, weight, gradient = (
        torch.randn(shape, generator=generator).bfloat16().to(device) for shape in shapes
    )
    tensors = [inputs.requires_grad_(), weight.requires_grad_()]
    made = fp8_linear(inputs, weight)
    found = [made.detach(), *torch.autograd.grad(made, tensors, gradient)]
    x, w, g = (_rounded(*pair) for pair in ((inputs, E4M3), (weight, E4M3), (gradient, E5M2)))
    for name, one, expected in zip(
        ("values", "dx", "dw"), found, (x @ w.T, g @ w, g.T @ x), strict=True
    ):
        yield row(f"FP8 product {name} against fp64", distance(one, expected), FP8_BOUND)


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """fp64 on the CPU, of the values that FP8 has."""
    small, scale = quantize(tensor.detach(), dtype)
    return small.cpu().double() * scale.cpu().double()


def sequences_of(lengths: Sequence[int], device: torch.device) -> PackedSequences:
    """Their borders on the device."""
    return PackedSequences(torch.tensor([0, *lengths]).cumsum(0).int().to(device), max(lengths))


def random_batch(lengths: Sequence[int], vocab_size: int) -> MicroBatch:
    """Random tokens, every seventh of them masked."""
    generator = torch.Generator().manual_seed(5)
    positions = torch.cat([torch.arange(length) for length in lengths])
    masked = torch.arange(0, len(positions), 7)
    return MicroBatch(
        input_ids=torch.randint(5, vocab_size, (len(positions),), generator=generator),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        token_type_ids=(positions > 4).long(),
        position_ids=positions,
        masked_positions=masked,
        masked_labels=torch.randint(5, vocab_size, (len(masked),), generator=generator),
        is_random_next=torch.arange(len(lengths)) % 2,
        max_seqlen=max(lengths),
    )


def distance(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what was expected; infinite where something is not finite."""
    difference = found.double().cpu() - expected.double().cpu()
    value = float(difference.norm() / expected.double().cpu().norm().clamp(min=1e-30))
    return value if value == value else float("inf")


def row(name: str, value: float, bound: float) -> dict[str, Any]:
    """One check."""
    return {"name": name, "value": float(f"{value:.4g}"), "bound": bound, "passed": value <= bound}
