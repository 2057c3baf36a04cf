"""Compares kernels that sum gradients as they make them with plain torch, in the interpreter: a line of JSON a case.

TRITON_INTERPRET=1 python tests/trainer/fused_sums_runs.py
"""

import json

import torch
from torch.nn import functional as F

from trainer.model.bert import BertForPreTraining, initialize_weights
from trainer.model.config import BertConfig
from trainer.model.fused_sums import GeluOfBiased, NormOfSum

# Tokens, columns: whole tiles, and parts of tiles of rows and columns; more than one program.
SHAPES = [(128, 128), (300, 200), (1, 48)]
EPS = 1e-12


def main() -> None:
    """Runs all cases."""
    for num_rows, num_columns in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for case in (gelu, norm):
                for dropout_p in (0.0, 0.25) if case is norm else (0.0,):
                    found = case(num_rows, num_columns, dtype, dropout_p)
                    print(
                        json.dumps(
                            {"case": [case.__name__, num_rows, num_columns, dropout_p], **found}
                        )
                    )
    for dtype in (torch.float32, torch.bfloat16):
        print(json.dumps({"case": "layer", **layer(dtype)}))


def layer(dtype):
    """What a layer does after attention, beside the plain way: states, and gradients of states and weights."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_heads": 2,
        "num_layers": 1,
        "vocab_size": 8,
    }
    model = BertForPreTraining(BertConfig(**sizes, hidden_dropout=0.0))
    initialize_weights(model, 0.2, seed=0)
    results = []
    for name, kind in (("_finish_with_sums", dtype), ("finish", torch.float64)):
        one = model.bert.layers[0].to(dtype).to(kind)
        tensors = [
            each.to(kind).requires_grad_()
            for each in random_tensors([(50, 32), (50, 2, 16)], dtype)
        ]
        parameters = [
            each
            for part, each in one.named_parameters()
            if not part.startswith(("query", "key", "value"))
        ]
        states = getattr(one, name)(*tensors)
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(kind)
        results.append(
            [
                states.detach(),
                *torch.autograd.grad((states * weights).sum(), [*tensors, *parameters]),
            ]
        )
    differences = [float((a.double() - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    return {"dtype": str(dtype), "differences": differences}


def gelu(num_rows, num_columns, dtype, dropout_p):
    """gelu(x + bias)."""
    tensors = random_tensors([(num_rows, num_columns), (num_columns,)], dtype)
    return compare(tensors, GeluOfBiased.apply, lambda x, bias: F.gelu(x + bias))


def norm(num_rows, num_columns, dtype, dropout_p):
    """LayerNorm(dropout(x + bias) + residual), with the mask that the same seed draws."""
    tokens, columns = (num_rows, num_columns), (num_columns,)
    torch.manual_seed(7)
    kept = torch.ops.aten.native_dropout(torch.ones(tokens, dtype=dtype), dropout_p, True)[1]

    def written_out(x, bias, residual, weight, norm_bias):
        return F.layer_norm(
            (x + bias) * kept / (1 - dropout_p) + residual, columns, weight, norm_bias, EPS
        )

    def fused(*tensors):
        torch.manual_seed(7)
        return NormOfSum.apply(*tensors, dropout_p.as_integer_ratio(), EPS.as_integer_ratio())

    return compare(
        random_tensors([tokens, columns, tokens, columns, columns], dtype), fused, written_out
    )


def random_tensors(shapes, dtype):
    """Normal numbers, in that type."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def compare(tensors, fused, written_out):
    """Differences of the value and of each gradient from those written out in fp64, relative to the norm."""
    weights = torch.randn(tensors[0].shape, generator=torch.Generator().manual_seed(1)).to(
        tensors[0].dtype
    )
    results = []
    for run, dtype in ((fused, tensors[0].dtype), (written_out, torch.float64)):
        inputs = [each.to(dtype).requires_grad_() for each in tensors]
        value = run(*inputs)
        results.append(
            [value.detach(), *torch.autograd.grad((value * weights.to(dtype)).sum(), inputs)]
        )
    differences = [float((a.double() - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    return {"dtype": str(tensors[0].dtype), "differences": differences}


if __name__ == "__main__":
    main()
