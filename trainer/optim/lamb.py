"""LAMB (You et al. 2020, algorithm 2) whose trust ratios are those of whole tensors, however ZeRO splits them.

As NVIDIA's BERT uses it: the gradient is clipped by its global norm first, both means are bias-corrected, tensors
without weight decay (biases, LayerNorm) take Adam's step, and no ratio is clamped. `timm.optim.Lamb` does the same in
one process with bias_correction, grad_averaging and max_grad_norm=1.0, and with trust_clip and always_adapt off.

A step asks the other ranks twice: for the gradient's norms, and, once these have clipped it, for the norms of weights
and updates. The direction is not linear in the clipped gradient, so the second cannot ride along with the first.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from trainer.optim.adamw import AdamW


class Lamb(AdamW):
    """Adam's direction with decay, scaled for each tensor to the norm of its weights.

    Attributes:
        trust_ratios_P: [P] of the last update; 1 where a tensor has no decay or a norm is 0, and before the first.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, Parameter]], **settings: Any) -> None:
        """As AdamW."""
        super().__init__(named_parameters, **settings)
        self.trust_ratios_P = torch.ones(len(self.decays_P))

    def metrics(self) -> dict[str, float]:
        """Smallest, middle and largest trust ratio among the tensors that decay."""
        ratios = self.trust_ratios_P[self.decays_P.to(self.trust_ratios_P.device)]
        values = torch.stack([ratios.min(), ratios.median(), ratios.max()]).tolist()
        return dict(zip(("trust_ratio_min", "trust_ratio_median", "trust_ratio_max"), values, strict=True))

    def _update(self, gradients: list[Tensor], divisor: Tensor) -> None:
        learning_rate: float = self.param_groups[0]["lr"]
        weights = self.pieces("fp32")
        decays = [-self.weight_decay if fragment.decays else 0.0 for fragment in self.fragments]
        # Adam with learning rate 1 takes the direction from what decay takes: updates with their signs turned.
        updates = list(torch._foreach_mul(weights, decays)) if weights else []
        self._move(updates, gradients, divisor, 1.0, 0.0, range(len(updates)))
        self.trust_ratios_P = self._trust_ratios(weights, updates)
        if weights:
            ratios = self.trust_ratios_P[self.index].unbind()
            torch._foreach_addcmul_(weights, updates, ratios, value=learning_rate)

    def _trust_ratios(self, weights: list[Tensor], updates: list[Tensor]) -> Tensor:
        """[P]; both norms of every tensor come from all ranks in one all-reduce."""
        weight_norms_P, update_norms_P = self.squared_norms(weights, updates).sqrt()
        is_scaled_P = self.decays_P.to(weight_norms_P.device) & (weight_norms_P > 0) & (update_norms_P > 0)
        return torch.where(is_scaled_P, weight_norms_P / update_norms_P, torch.ones_like(weight_norms_P))
