"""Compares the kernels of attention with attention written out, in Triton's interpreter: one line of JSON a case.

TRITON_INTERPRET=1 python tests/trainer/short_attention_runs.py
"""

import json

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.model import attention
from trainer.model.bert import build_model
from trainer.model.config import BertConfig
from trainer.model.short_attention import ShortAttention

# Lengths, bound of lengths, dropout, causality, whether the three are views of one product, which
# is then also taken whole.
CASES = [
    ([5, 0, 16, 1], 16, 0.0, False, False),
    ([5, 0, 16, 1], 16, 0.25, False, True),
    ([128, 37, 90], 128, 0.1, False, True),
    ([30, 7], 128, 0.1, True, False),
    ([33, 64, 65, 32], 96, 0.1, False, False),
    ([512, 130], 512, 0.1, False, False),
    ([200, 129], 512, 0.1, True, True),
]
NUM_HEADS, HEAD_SIZE = 2, 32


def main() -> None:
    """Runs all cases, and then a layer whose three products are one."""
    for lengths, bound, dropout_p, is_causal, is_fused in CASES:
        print(json.dumps(compare(lengths, bound, dropout_p, is_causal, is_fused)))
    print(json.dumps(compare_layers()))


def compare(lengths, bound, dropout_p, is_causal, is_fused):
    """The largest differences of the context and of the gradients, and the share that dropout kept."""
    borders = torch.tensor([0, *lengths]).cumsum(0).int()
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, NUM_HEADS, HEAD_SIZE, generator=generator)
    inputs = list(qkv.unbind(1)) if is_fused else [each.contiguous() for each in qkv.unbind(1)]
    inputs = [each.requires_grad_() for each in inputs]
    masks = read_masks(lengths, borders, bound, dropout_p)
    context = run(inputs, borders, bound, dropout_p, is_causal)
    expected = written_out(*inputs, lengths, masks, dropout_p, is_causal)
    weights = torch.randn(context.shape, generator=generator)
    whole = qkv.clone().requires_grad_()
    gradients = torch.autograd.grad((context * weights).sum(), inputs)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    context_of_whole = run([whole], borders, bound, dropout_p, is_causal)
    (gradient_of_whole,) = torch.autograd.grad((context_of_whole * weights).sum(), whole)
    is_same = torch.equal(context_of_whole, context) and torch.equal(
        gradient_of_whole, torch.stack(gradients, 1)
    )
    kept = torch.cat([each.flatten() for each in masks])
    return {
        "lengths": lengths,
        "whole_is_same": is_same,
        "context": float((context - expected).detach().abs().max()),
        "gradients": [
            float((a - b).abs().max()) for a, b in zip(gradients, expected_gradients, strict=True)
        ],
        "dropout_p": dropout_p,
        "kept": float(kept.mean()),
        "num_draws": len(kept),
        "strange_values": int(((kept != 0) & (kept != 1)).sum()),
    }


def run(products, borders, bound, dropout_p, is_causal):
    """The kernels, with the same draws each time."""
    torch.manual_seed(7)
    return ShortAttention.apply(borders, bound, dropout_p, is_causal, *products)


class Stackings(TorchDispatchMode):
    """Counts copies that put tensors together."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.stack, torch.ops.aten.cat)
        return func(*args, **(kwargs or {}))


def compare_layers():
    """Largest differences of a layer's gradients from those with three products, and what backward stacked."""
    attention._has_flash_kernel = lambda *_: True  # the interpreter runs on the CPU
    sequences = attention.PackedSequences(torch.tensor([0, 20, 50], dtype=torch.int32), 30)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_heads": 2,
        "num_layers": 1,
        "vocab_size": 8,
    }
    generator = torch.Generator().manual_seed(0)
    hidden, weights = torch.randn(2, 50, 64, generator=generator).unbind(0)
    results = []
    for fused_qkv in (False, True):
        config = BertConfig(
            **sizes, hidden_dropout=0.0, attention_backend="triton", fused_qkv=fused_qkv
        )
        layer = build_model(config, seed=0).bert.layers[0].train()
        inputs = hidden.clone().requires_grad_()
        torch.manual_seed(7)
        states = layer(inputs, sequences)
        with Stackings() as stackings:
            results.append(
                torch.autograd.grad((states * weights).sum(), [inputs, *layer.parameters()])
            )
    return {
        "layers": [float((a - b).abs().max()) for a, b in zip(*results, strict=True)],
        "stackings": stackings.count,
    }


def read_masks(lengths, borders, bound, dropout_p):
    """What dropout keeps [A, Q, K]: with equal scores and unit vectors as values the context is the mask."""
    zeros = torch.zeros(sum(lengths), NUM_HEADS, HEAD_SIZE)
    place = torch.cat([torch.arange(each) for each in lengths])
    parts = []
    for first in range(0, max(lengths), HEAD_SIZE):
        values = (
            (place[:, None] == first + torch.arange(HEAD_SIZE))
            .float()[:, None]
            .expand_as(zeros)
            .contiguous()
        )
        parts.append(run([zeros, zeros, values], borders, bound, dropout_p, False))
    whole = torch.cat(parts, -1).split(lengths)
    return [
        (each[..., :length] * length * (1 - dropout_p)).transpose(0, 1).round(decimals=3)
        for each, length in zip(whole, lengths, strict=True)
    ]


def written_out(q, k, v, lengths, masks, dropout_p, is_causal):
    """Softmax attention, one sequence at a time, with the masks given."""
    contexts = []
    for one_q, one_k, one_v, mask in zip(
        *(each.split(lengths) for each in (q, k, v)), masks, strict=True
    ):
        scores = torch.einsum("qad,kad->aqk", one_q, one_k) / HEAD_SIZE**0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        contexts.append(
            torch.einsum("aqk,kad->qad", scores.softmax(-1) * mask / (1 - dropout_p), one_v)
        )
    return torch.cat(contexts)


if __name__ == "__main__":
    main()
