"""AdamW as BERT uses it (google-research/bert `optimization.py`; Loshchilov and Hutter 2019, algorithm 2)."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from trainer.optim.sharded import ShardedOptimizer


class AdamW(ShardedOptimizer):
    """Adam with decoupled weight decay. Google's BERT leaves the bias correction out, torch.optim.AdamW applies it."""

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Parameter]],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        max_grad_norm: float = 1.0,
    ) -> None:
        """See `trainer.model_settings.OptimizerSettings` for the meaning of each value."""
        super().__init__(named_parameters, max_grad_norm)
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.bias_correction = bias_correction

    def _update(self, gradients: list[Tensor], divisor: Tensor) -> None:
        learning_rate: float = self.param_groups[0]["lr"]
        weights = self.pieces("fp32")
        for decays in (True, False):
            chosen = [place for place, fragment in enumerate(self.fragments) if fragment.decays == decays]
            self._move(weights, gradients, divisor, learning_rate, self.weight_decay if decays else 0.0, chosen)

    def _move(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        divisor: Tensor,
        learning_rate: float,
        weight_decay: float,
        chosen: Sequence[int],
    ) -> None:
        """Moves both running means on, and weights by Adam's direction, with torch's kernel: one pass over all.

        28 bytes an element where single operations move 90; the gradients are divided on the way, in place.

        Args:
            weights: What moves, in the order of `fragments`, as the gradients.
            gradients: Before clipping.
            divisor: Scalar that clips them.
            learning_rate: Of this step.
            weight_decay: Share of learning_rate by which weights shrink before they move.
            chosen: Places of the fragments to move.
        """
        if not chosen:
            return
        everything = (weights, gradients, self.pieces("exp_avg"), self.pieces("exp_avg_sq"))
        moving, grads, first, second = ([each[place] for place in chosen] for each in everything)
        # After infinitely many updates there is nothing to correct.
        num_updates = float(self.num_updates) if self.bias_correction else math.inf
        step = torch.full((), num_updates, dtype=torch.float32, device=divisor.device)
        torch._fused_adamw_(
            moving,
            grads,
            first,
            second,
            [],
            [step] * len(chosen),
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )
