"""AdamW as BERT uses it (google-research/bert `optimization.py`; Loshchilov and Hutter 2019, algorithm 2)."""

import math
from collections.abc import Iterable

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

    def _update(self, gradients: list[Tensor]) -> None:
        learning_rate: float = self.param_groups[0]["lr"]
        first, second = (self.tensors(name) for name in self.state_names)
        denominators, correction = self._advance(first, second, gradients, self.num_updates)
        self._decay(1.0 - learning_rate * self.weight_decay)
        torch._foreach_addcdiv_(self.owned, first, denominators, -learning_rate / correction)

    def _advance(
        self, first: list[Tensor], second: list[Tensor], gradients: list[Tensor], num_updates: int
    ) -> tuple[list[Tensor], float]:
        """Moves both running means on; Adam's direction is the first mean / the returned list / the number."""
        beta1, beta2 = self.betas
        torch._foreach_lerp_(first, gradients, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
        correction1 = 1.0 - beta1**num_updates if self.bias_correction else 1.0
        correction2 = 1.0 - beta2**num_updates if self.bias_correction else 1.0
        denominators = list(torch._foreach_sqrt(second))
        torch._foreach_div_(denominators, math.sqrt(correction2))
        torch._foreach_add_(denominators, self.eps)
        return denominators, correction1

    def _decay(self, factor: float) -> None:
        """Shrinks the weights that decay, before they move, as torch.optim.AdamW does."""
        weights = [fragment.of(self.owned) for fragment in self.fragments if fragment.decays]
        if weights and factor != 1.0:
            torch._foreach_mul_(weights, factor)
