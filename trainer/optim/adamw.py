"""AdamW as BERT uses it (google-research/bert `optimization.py`; Loshchilov and Hutter 2019)."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from trainer.optim.sharded import ShardedOptimizer


class AdamW(ShardedOptimizer):
    """Adam with decoupled weight decay; Google's BERT leaves the bias correction out."""

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
        """See `trainer.optim.settings.OptimizerSettings` for the meaning of each value."""
        super().__init__(named_parameters, max_grad_norm)
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.bias_correction = bias_correction

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        rate: float = self.param_groups[0]["lr"]
        everything = (self.views("fp32"), gradients, *map(self.views, self.state_names))
        for decays, decay in ((True, self.weight_decay), (False, 0.0)):
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
        """Moves both running means on, and weights by Adam's direction.

        One pass of torch's kernel does it for all: 28 bytes an element where single operations move
        90. Lists are in one order; gradients are divided in place where `divisor` clips them.
        """
        if not weights:
            return
        # After infinitely many updates there is nothing to correct.
        step = torch.full_like(weights[0][0], num_updates if self.bias_correction else math.inf)
        torch._fused_adamw_(
            weights,
            gradients,
            first,
            second,
            [],
            [step] * len(weights),
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
        )
