"""Updates weights by AdamW (Loshchilov and Hutter 2019; google-research/bert `optimization.py`)."""

import math

import torch
from torch import Tensor

from trainer.optim.sharded import ShardedOptimizer


class AdamW(ShardedOptimizer):
    """Updates weights by Adam with decoupled weight decay.

    The running means are corrected for their start at 0 unless the setting `bias_correction` is
    False. Google's BERT does not correct them.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        """Updates the weights by AdamW: first those with weight decay, then those without."""
        learning_rate: float = self.param_groups[0]["lr"]
        weights = self.views("fp32")
        first = self.views("exp_avg")
        second = self.views("exp_avg_sq")
        for decays, weight_decay in ((True, self.settings.weight_decay), (False, 0.0)):
            chosen = [i for i, fragment in enumerate(self.fragments) if fragment.decays == decays]
            self._move(
                [weights[i] for i in chosen],
                [gradients[i] for i in chosen],
                [first[i] for i in chosen],
                [second[i] for i in chosen],
                learning_rate,
                weight_decay,
                self.num_updates,
                divisor,
            )

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
        """Makes one AdamW update of some weights, by one fused kernel.

        It updates the running means of their gradients and squared gradients, and then the weights.

        Args:
            weights: Tensors of weights, updated in place.
            gradients: The gradient of each tensor. Clipping divides them in place.
            first: The running mean of each tensor's gradients, updated in place.
            second: The running mean of each tensor's squared gradients, updated in place.
            learning_rate: The learning rate.
            weight_decay: Learning rate * weight_decay is the share of each weight that is
                subtracted.
            num_updates: Number of updates, this one included. The bias correction depends on it.
            divisor: Scalar tensor by which clipping divides the gradients; None means no clipping.
        """
        if not weights:
            return
        settings = self.settings
        # The correction divides by 1 - beta ** step, which is 1 for an infinite step.
        step = torch.full_like(weights[0][0], num_updates if settings.bias_correction else math.inf)
        torch._fused_adamw_(
            weights,
            gradients,
            first,
            second,
            [],
            [step] * len(weights),
            lr=learning_rate,
            beta1=settings.beta1,
            beta2=settings.beta2,
            weight_decay=weight_decay,
            eps=settings.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )
