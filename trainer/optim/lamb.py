"""Updates weights by LAMB (You et al. 2020, algorithm 2).

Trust ratios are those of whole tensors, however ZeRO splits them. The rest is as in NVIDIA's BERT:
the gradient is first clipped by its global norm, both running means are bias-corrected by default,
tensors without weight decay (biases, LayerNorm) take Adam's step, and no ratio is clamped.
`timm.optim.Lamb` does the same in one process with bias_correction, grad_averaging and
max_grad_norm=1.0, and with trust_clip and always_adapt off.

Under ZeRO with several ranks, the norm of the gradient needs an all-reduce, and the norms of the
update need another. The second one has to wait for the first, because the update depends on whether
the gradient is clipped. To save an all-reduce, the update is first computed as if the gradient were
not clipped. One all-reduce then adds up the norms of the gradient and of this guessed update. If
the gradient has to be clipped after all, the guess is dropped, the right update is computed, and a
second all-reduce adds up its norms.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.optim.adamw import AdamW


class _Proposal(NamedTuple):
    """An update that has been computed but not yet applied to the weights.

    Attributes:
        moments: The running means of gradients, and those of squared gradients, as they are after
            the update. Both lists have one tensor per fragment.
        updates: One tensor per fragment. Learning rate * trust ratio * this tensor is added to the
            weights.
    """

    moments: tuple[list[Tensor], list[Tensor]]
    updates: list[Tensor]


class Lamb(AdamW):
    """Updates weights by LAMB, which scales the update of each tensor by a trust ratio.

    The update is that of Adam with weight decay. The trust ratio of a tensor is the norm of its
    weights divided by the norm of its update, so that the length of a step is in proportion to the
    norm of the weights. The ratio is 1 for tensors without weight decay, and if one of the norms is
    0.

    Attributes:
        trust_ratios_P: The trust ratios of the last update, fp32 [P].
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trust_ratios_P = torch.ones(len(self.decays_P))
        self._decays_P = self.decays_P  # moved once to the device of the norms
        # The update without clipping, and the squared norms [2, P] of weights and of that update.
        self._guess: tuple[_Proposal, Tensor] | None = None

    def metrics(self) -> dict[str, float]:
        """Returns the least, median and largest trust ratio of the tensors with weight decay.

        The keys are "trust_ratio_min", "trust_ratio_median" and "trust_ratio_max".
        """
        ratios = self.trust_ratios_P.cpu()[self.decays_P]  # one wait for a device
        return {
            "trust_ratio_min": float(ratios.min()),
            "trust_ratio_median": float(ratios.median()),
            "trust_ratio_max": float(ratios.max()),
        }

    def _measure(self, gradients: list[Tensor]) -> Tensor:
        """Returns the squared norm of each parameter's gradient before clipping, fp32 [P].

        If norms need an all-reduce, it also computes the update as if the gradient were not
        clipped, and keeps this update and its norms in `_guess`. The same all-reduce adds up the
        norms of the gradient, the weights and the update.
        """
        self._guess = None
        if not self.asks_other_ranks:
            return super()._measure(gradients)
        first, second = ([view.clone() for view in self.views(name)] for name in self.state_names)
        proposal = self._propose(first, second, gradients, self.num_updates + 1, None)
        norms = self.squared_norms(gradients, self.views("fp32"), proposal.updates)
        self._guess = proposal, norms[1:]
        return norms[0]

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        """Updates the weights by LAMB.

        It applies the update that `_measure` guessed. If there is no guess, or if the guess is
        wrong because the gradient is clipped, it computes the update.
        """
        guess = None if self.is_clipped else self._guess
        self._guess = None
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
        """Computes an update from the gradients, without changing the weights.

        Args:
            first: Running means of gradients, one tensor per fragment. They are updated in place,
                and are in the result.
            second: Running means of squared gradients, likewise.
            gradients: One tensor per fragment. Clipping divides them in place.
            num_updates: Number of updates, this one included.
            divisor: Scalar tensor by which clipping divides the gradients; None means no clipping.
        """
        decays = [
            -self.settings.weight_decay if fragment.decays else 0.0 for fragment in self.fragments
        ]
        # Weight decay gives the start value. With a learning rate of 1, Adam then subtracts its
        # direction from it.
        updates = list(torch._foreach_mul(self.views("fp32"), decays)) if decays else []
        self._move(updates, gradients, first, second, 1.0, 0.0, num_updates, divisor)
        return _Proposal((first, second), updates)

    def _trust_ratios(self, weight_norms_P: Tensor, update_norms_P: Tensor) -> Tensor:
        """Returns the trust ratio of each parameter, fp32 [P].

        Args:
            weight_norms_P: The norm of each parameter's weights.
            update_norms_P: The norm of each parameter's update, without learning rate.
        """
        if self._decays_P.device != weight_norms_P.device:
            self._decays_P = self.decays_P.to(weight_norms_P.device)
        is_scaled_P = self._decays_P & (weight_norms_P > 0) & (update_norms_P > 0)
        return torch.where(is_scaled_P, weight_norms_P / update_norms_P, 1.0)
