"""How weights are updated, as run files say it, and at which learning rate."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, LAMB or Muon. Weight decay applies to matrices, not to biases and LayerNorm.

    Attributes:
        name: The optimizer: adamw, lamb for batches of many thousands, or muon, whose beta1 of
            layers' matrices is 0.95.
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: What is added to the root of the second mean, 1e-6 as in google-research/bert.
        weight_decay: Decoupled weight decay: weights shrink by learning rate * weight_decay a step.
        bias_correction: Whether both means are corrected for their start at 0; google-research/bert
            does not.
        max_grad_norm: Largest global L2 norm of the gradient; 0 turns clipping off.
    """

    name: Literal["adamw", "lamb", "muon"] = "adamw"
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


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then polynomial decay (BERT paper, appendix A.2: linear).

    Like Hugging Face's `get_linear_schedule_with_warmup`; google-research/bert and NVIDIA draw the
    decay from step 0 instead (`decay_start` 0). `end_lr` is reached one step after the last update;
    a power of 0 keeps peak_lr.
    """

    steps: int
    warmup_steps: int
    peak_lr: float
    end_lr: float = 0.0
    power: float = 1.0
    decay_start: int | None = None

    def learning_rate(self, step: float) -> float:
        """The rate of the update after `step` others, 0 for the first; runs by time ask between."""
        if step < self.warmup_steps:
            return self.peak_lr * step / self.warmup_steps
        start = self.warmup_steps if self.decay_start is None else self.decay_start
        progress = (step - start) / max(1, self.steps - start)
        remaining: float = (1.0 - min(1.0, progress)) ** self.power
        return self.end_lr + (self.peak_lr - self.end_lr) * remaining
