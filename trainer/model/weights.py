"""Checks a model's weights after they are read from a file."""

from collections.abc import Mapping

import torch
from torch import Tensor


def check_weights(tensors: Mapping[str, Tensor], file: str) -> None:
    """Refuses tensors that are not finite floating-point numbers.

    A model with one NaN answers everything with NaN. Whole numbers are the weights of a quantized
    model, whose scales are stored elsewhere.

    Args:
        tensors: The weights by their names in the file.
        file: The file's name in messages.

    Raises:
        ValueError: A tensor is wrong; the message names the first one.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            cure = "give the model's weights in fp32, bf16 or fp16"
            raise ValueError(
                f"{file}: {name} is of {kind}, expected floating-point numbers; {cure}"
            )
        is_finite = torch.isfinite(tensor.float())
        if not bool(is_finite.all()):
            wrong = f"{int((~is_finite).sum()):,} of {tensor.numel():,} numbers"
            says = f"{name} is damaged: {wrong} are NaN or infinite"
            cure = "take an earlier checkpoint, or copy the model again"
            raise ValueError(f"{file}: {says}; {cure}")
