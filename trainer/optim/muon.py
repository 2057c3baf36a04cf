"""Updates the matrices of layers by Muon (Jordan et al. 2024), and all other weights by AdamW.

The update of a matrix is the Nesterov momentum of its gradients, which five steps of Newton-Schulz
make nearly orthogonal. The update is scaled to the root mean square of a typical update of AdamW
(Moonlight, arXiv 2502.16982, section 2.2), so that AdamW's learning rates and weight decay can be
used. The gradient is first clipped by its global norm. Query, key and value are separate matrices.
`torch.optim.Muon` does the same with adjust_lr_fn="match_rms_adamw" and `muon_precision` bf16.

By default the products of these steps are in fp32, whatever the model is computed in. In bf16
losses depend on the number of ranks: another order of sums changes a gradient by 1e-7, which
changes an update in bf16 by 0.4 to 1.4 %, in fp32 by 2e-5.

Under ZeRO-1 and 2 each rank updates its own part of every bucket of parameters, and several ranks
can hold parts of the same matrix. Such a matrix has an owner, which computes the update of the
whole matrix. The parts travel to the owner, and their updates travel back
(trainer/optim/split_matrices.py). This happens once in a step, when all gradients have arrived. So
gradients leave in buckets during the backward pass, as those of the other optimizers do.
"""

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trainer.optim.adamw import AdamW
from trainer.optim.owners import STEPS, is_muons
from trainer.optim.split_matrices import SplitMatrices, find_split_matrices

MOMENTUM = 0.95
ADAMS_RMS = 0.2
"""Root mean square of a typical update of AdamW, to which a matrix's update is scaled.

An orthogonal matrix times sqrt(max(rows, columns)) has a root mean square of 1.
"""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the polynomial of each step of Newton-Schulz."""


class Muon(AdamW):
    """Updates the matrices of layers by Muon, and all other parameters by AdamW.

    It keeps the states of AdamW. For matrices of layers, "exp_avg" is the momentum, and
    "exp_avg_sq" stays zero.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # The shapes of the matrices of layers, by the index of the parameter.
        self._shapes = {
            index: parameter.shape
            for index, (name, parameter) in enumerate(self._parameters.items())
            if is_muons(name, parameter.shape)
        }
        is_half = self.settings.muon_precision == "bf16"
        self._dtype = torch.bfloat16 if is_half else torch.float32

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        """Updates matrices of layers by Muon, and all other parameters by AdamW."""
        learning_rate: float = self.param_groups[0]["lr"]
        weights = self.views("fp32")
        first = self.views("exp_avg")
        second = self.views("exp_avg_sq")
        for weight, fragment in zip(weights, self.fragments, strict=True):
            if fragment.decays:
                weight.mul_(1 - learning_rate * self.settings.weight_decay)

        is_matrix = [fragment.index in self._shapes for fragment in self.fragments]
        matrices = [i for i, is_one in enumerate(is_matrix) if is_one]
        others = [i for i, is_one in enumerate(is_matrix) if not is_one]
        self._move(
            [weights[i] for i in others],
            [gradients[i] for i in others],
            [first[i] for i in others],
            [second[i] for i in others],
            learning_rate,
            0.0,  # they have decayed above
            self.num_updates,
            divisor,
        )

        for i in matrices:
            if divisor is not None:
                gradients[i].div_(divisor)
            first[i].lerp_(gradients[i], 1 - MOMENTUM)
            gradients[i].lerp_(first[i], MOMENTUM)
        self._replace_by_updates({self.fragments[i].index: gradients[i] for i in matrices})
        for i in matrices:
            scale = ADAMS_RMS * math.sqrt(max(self._shapes[self.fragments[i].index]))
            weights[i].sub_(gradients[i], alpha=learning_rate * scale)

    def _replace_by_updates(self, parts: dict[int, Tensor]) -> None:
        """Replaces the Nesterov momentum of matrices by their orthogonalised updates, in place.

        All ranks call it together, because it exchanges parts of matrices.

        Args:
            parts: For each matrix, by its index among the parameters, the momentum of the part that
                this rank holds, flattened.
        """
        whole = {
            index: part
            for index, part in parts.items()
            if part.numel() == self._shapes[index].numel()
        }
        self._orthogonalise(whole)
        if self.asks_other_ranks:
            owned = self._split_matrices.collect(parts)
            self._orthogonalise(owned)
            for index, update in self._split_matrices.hand_out(owned).items():
                parts[index].copy_(update)

    def _orthogonalise(self, matrices: dict[int, Tensor]) -> None:
        """Orthogonalises whole matrices in place, which are flattened, by their indices."""
        for index, values in matrices.items():
            matrix = values.view(self._shapes[index]).to(self._dtype)
            values.copy_(orthogonalise(matrix).reshape(-1))

    @cached_property
    def _split_matrices(self) -> SplitMatrices:
        """What this rank exchanges of matrices that several ranks hold parts of.

        All ranks must read this attribute together for the first time, because its computation
        exchanges fragments.
        """
        empty = self.owned[0].new_empty(0, dtype=self._dtype)
        return find_split_matrices(self.fragments, self._shapes, empty)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Returns the nearly orthogonal matrix that has the same singular vectors as a matrix.

    If the singular value decomposition of the matrix is U S V^T, the result is U D V^T, where the
    values on the diagonal of D are from 0.7 to 1.2. Products are in the matrix's own type, which is
    also the type of the result.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if is_tall else matrix
    result = result / result.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        gram = result @ result.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        result = torch.addmm(result, polynomial, result, beta=a)
    return result.T if is_tall else result
