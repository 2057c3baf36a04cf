"""LAMB (You et al. 2020, algorithm 2), with trust ratios of whole tensors, however split.

As NVIDIA's BERT uses it: the gradient is clipped by its global norm first, both means are
bias-corrected, tensors without weight decay (biases, LayerNorm) take Adam's step, and no ratio is
clamped. `timm.optim.Lamb` does the same in one process with bias_correction, grad_averaging and
max_grad_norm=1.0, and with trust_clip and always_adapt off.

Norms of updates depend on what clips the gradient, which takes an all-reduce. So the update is
worked out as if nothing were clipped, and its norms ride along with the gradient's. Where it is
clipped after all, the guess is dropped and a second all-reduce adds up the right norms.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.optim.adamw import AdamW


class _Proposal(NamedTuple):
    """An update not yet made: both means after it, and what is added to weights unscaled."""

    moments: tuple[list[Tensor], list[Tensor]]
    updates: list[Tensor]


class Lamb(AdamW):
    """Adam's direction with decay, scaled to the norm of each tensor that decays, if not zero."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trust_ratios_P = torch.ones(len(self.decays_P))
        self._decays_P = self.decays_P  # where the norms are: a copy waits for the device
        # With the squared norms [2, P] of weights and updates.
        self._guess: tuple[_Proposal, Tensor] | None = None

    def metrics(self) -> dict[str, float]:
        """Smallest, middle and largest trust ratio among the tensors that decay."""
        ratios = self.trust_ratios_P.cpu()[self.decays_P]  # one wait for a device
        of_all = {"min": ratios.min(), "median": ratios.median(), "max": ratios.max()}
        return {f"trust_ratio_{name}": float(ratio) for name, ratio in of_all.items()}

    def _measure(self, gradients: list[Tensor]) -> Tensor:
        self._guess = None
        if not self.asks_other_ranks:
            return super()._measure(gradients)
        first, second = ([each.clone() for each in self.views(name)] for name in self.state_names)
        proposal = self._propose(first, second, gradients, self.num_updates + 1, None)
        norms = self.squared_norms(gradients, self.views("fp32"), proposal.updates)
        self._guess = proposal, norms[1:]
        return norms[0]

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        guess, self._guess = None if self.is_clipped else self._guess, None
        weights = self.views("fp32")
        if guess is None:
            first, second = map(self.views, self.state_names)
            proposal = self._propose(first, second, gradients, self.num_updates, divisor)
            squared_norms = self.squared_norms(weights, proposal.updates)
        else:
            proposal, squared_norms = guess
            for name, moved in zip(self.state_names, proposal.moments, strict=True):
                if moved:
                    torch._foreach_copy_(self.views(name), moved)
        weight_norms_P, update_norms_P = squared_norms.sqrt()
        self.trust_ratios_P = self._trust_ratios(weight_norms_P, update_norms_P)
        learning_rate: float = self.param_groups[0]["lr"]
        if weights:
            ratios = self.trust_ratios_P[self.index].unbind()
            torch._foreach_addcmul_(weights, proposal.updates, ratios, value=learning_rate)

    def _propose(
        self,
        first: list[Tensor],
        second: list[Tensor],
        gradients: list[Tensor],
        num_updates: int,
        divisor: Tensor | None,
    ) -> _Proposal:
        """Moves the two running means on, and says what they would do to the weights."""
        decays = [
            -self.settings.weight_decay if fragment.decays else 0.0 for fragment in self.fragments
        ]
        # Adam with learning rate 1 takes its direction from what decay takes.
        updates = list(torch._foreach_mul(self.views("fp32"), decays)) if decays else []
        self._move(updates, gradients, first, second, 1.0, 0.0, num_updates, divisor)
        return _Proposal((first, second), updates)

    def _trust_ratios(self, weight_norms_P: Tensor, update_norms_P: Tensor) -> Tensor:
        if self._decays_P.device != weight_norms_P.device:
            self._decays_P = self.decays_P.to(weight_norms_P.device)
        is_scaled_P = self._decays_P & (weight_norms_P > 0) & (update_norms_P > 0)
        return torch.where(is_scaled_P, weight_norms_P / update_norms_P, 1.0)
