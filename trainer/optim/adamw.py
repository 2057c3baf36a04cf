"""AdamW as BERT uses it (google-research/bert `optimization.py`; Loshchilov and Hutter 2019)."""

import math

import torch
from torch import Tensor

from trainer.optim.sharded import ShardedOptimizer


class AdamW(ShardedOptimizer):
    """Adam with decoupled weight decay; Google's BERT leaves the bias correction out."""

    state_names = ("exp_avg", "exp_avg_sq")

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        rate: float = self.param_groups[0]["lr"]
        everything = (self.views("fp32"), gradients, *map(self.views, self.state_names))
        for decays, decay in ((True, self.settings.weight_decay), (False, 0.0)):
            places = [i for i, fragment in enumerate(self.fragments) if fragment.decays == decays]
            weights, grads, first, second = ([pieces[i] for i in places] for pieces in everything)
            self._move(weights, grads, first, second, rate, decay, self.num_updates, divisor)

    def _move(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        learning_rate: float,
        weight_decay: float,
        num_updates: int,
        divisor: Tensor | None,
    ) -> None:
        """Moves means on, and weights by Adam's direction, in one kernel's pass; clips in place."""
        if not weights:
            return
        chosen = self.settings
        # After infinitely many updates there is nothing to correct.
        step = torch.full_like(weights[0][0], num_updates if chosen.bias_correction else math.inf)
        torch._fused_adamw_(
            weights,
            gradients,
            first,
            second,
            [],
            [step] * len(weights),
            lr=learning_rate,
            beta1=chosen.beta1,
            beta2=chosen.beta2,
            weight_decay=weight_decay,
            eps=chosen.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )
