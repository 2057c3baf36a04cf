"""The settings of a run's optimizer and of its learning rate."""

import math
from dataclasses import dataclass
from typing import Literal

WarmupForm = Literal["linear", "log"]
DecayForm = Literal["polynomial", "cosine"]


@dataclass(frozen=True)
class OptimizerSettings:
    """The settings of a run's optimizer.

    Attributes:
        name: The optimizer: adamw; lamb for batches of many thousands of instances; or muon, which
            uses 0.95 instead of beta1 for the matrices of layers.
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of squared gradients.
        eps: Number that is added to the root of the second mean, 1e-6 as in google-research/bert.
        weight_decay: Decoupled weight decay: each step shrinks matrices by learning rate *
            weight_decay. Biases and LayerNorm do not decay.
        bias_correction: Whether both means are corrected for their start at 0. google-research/bert
            does not correct them.
        max_grad_norm: Largest global L2 norm of the gradient, to which a larger gradient is
            clipped; 0 turns clipping off.
        muon_precision: The number format in which muon orthogonalises. With fp32 the losses do not
            depend on the number of ranks (to 1e-5). The published one is bf16, which is several
            times as fast on a device that multiplies in it.
    """

    name: Literal["adamw", "lamb", "muon"] = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True
    max_grad_norm: float = 1.0
    muon_precision: Literal["fp32", "bf16"] = "fp32"

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            rate = getattr(self, name)
            if not 0 <= rate < 1:
                raise ValueError(f"optimizer.{name} is {rate}; it must be at least 0 and below 1")
        for name in ("eps", "weight_decay", "max_grad_norm"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"optimizer.{name} is {value}; it must be at least 0")
        if self.muon_precision != "fp32" and self.name != "muon":
            raise ValueError(
                f"optimizer.muon_precision is {self.muon_precision}, but optimizer.name is"
                f" {self.name}; leave muon_precision out, or choose optimizer.name muon"
            )


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of a phase: a warm-up, then a decay.

    By default the rate rises linearly from 0 to `peak_lr`, and then falls linearly to 0 (BERT
    paper, appendix A.2), as in Hugging Face's `get_linear_schedule_with_warmup`. In
    google-research/bert and NVIDIA's BERT, the line of the decay begins with `peak_lr` at step 0,
    and the warm-up replaces its beginning (`decay_start` 0): the rate then jumps below `peak_lr`
    at the end of the warm-up. The logarithmic warm-up and the cosine are those of DeepSpeed's
    WarmupLR, WarmupDecayLR and WarmupCosineLR: `learning_rate(n)` is their rate at iteration n.

    Attributes:
        steps: Number of steps of the phase.
        warmup_steps: Number of steps of the warm-up.
        peak_lr: The learning rate at which the warm-up ends and the decay begins.
        end_lr: The rate at the end of the decay. A polynomial reaches it one step after the last
            update, a cosine at the last update.
        power: Exponent of the polynomial; 1 makes it a line, and 0 keeps peak_lr.
        decay_start: The step at which the curve of the decay begins, counted from 0; None means the
            end of the warm-up.
        start_lr: The rate of the first step of a warm-up.
        warmup_form: How the rate grows: linear in the step, or in the logarithm of the step.
        decay_form: How the rate falls: as a polynomial, or as half a cosine.
    """

    steps: int
    warmup_steps: int
    peak_lr: float
    end_lr: float = 0.0
    power: float = 1.0
    decay_start: int | None = None
    start_lr: float = 0.0
    warmup_form: WarmupForm = "linear"
    decay_form: DecayForm = "polynomial"

    def learning_rate(self, step: float) -> float:
        """Returns the learning rate of one update.

        Args:
            step: The number of updates of the phase before this one, so 0 for the first. It may be
                a fraction if the run is limited by time.
        """
        if step < self.warmup_steps:
            return self._growing(step)
        start = self.warmup_steps if self.decay_start is None else self.decay_start
        length = max(1, self.steps - start)
        remaining: float
        if self.decay_form == "cosine":
            progress = min(1.0, (step - start + 1) / length)
            remaining = (1 + math.cos(math.pi * progress)) / 2
        else:
            remaining = (1.0 - min(1.0, (step - start) / length)) ** self.power
        return self.end_lr + (self.peak_lr - self.end_lr) * remaining

    def _growing(self, step: float) -> float:
        """Returns the learning rate of a step of the warm-up; `step` counts from 0."""
        growth = self.peak_lr - self.start_lr
        if self.warmup_form == "log":
            return self.start_lr + growth * math.log(step + 1) / math.log(max(2, self.warmup_steps))
        return self.start_lr + growth * step / self.warmup_steps
