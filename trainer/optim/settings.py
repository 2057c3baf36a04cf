"""How weights are updated, as run files say it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW or LAMB. Weight decay applies to matrices, not to biases and LayerNorm.

    Attributes:
        name: The optimizer: adamw, or lamb for batches of many thousands, whose steps are scaled to
            the norm of each tensor.
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: What is added to the root of the second mean, 1e-6 as in google-research/bert.
        weight_decay: Decoupled weight decay: weights shrink by learning rate * weight_decay a step.
        bias_correction: Whether both means are corrected for their start at 0. google-research/bert
            does not; torch.optim.AdamW does.
        max_grad_norm: Largest global L2 norm of the gradient; 0 turns clipping off.
    """

    name: Literal["adamw", "lamb"] = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= (rate := getattr(self, name)) < 1:
                raise ValueError(f"optimizer.{name} is {rate}; it must be at least 0 and below 1")
        for name in ("eps", "weight_decay", "max_grad_norm"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"optimizer.{name} is {value}; it must be at least 0")
