"""Updates the matrices of layers by Muon (Jordan et al. 2024), and all other weights by AdamW.

The update of a matrix is the Nesterov momentum of its gradients, which five steps of Newton-Schulz
make nearly orthogonal. The update is scaled to the root mean square of a typical update of AdamW
(Moonlight, arXiv 2502.16982, section 2.2), so that AdamW's learning rates and weight decay can be
used. The gradient is first clipped by its global norm. Query, key and value are separate matrices.
`torch.optim.Muon` does the same with adjust_lr_fn="match_rms_adamw" and `muon_precision` bf16.

By default the products of these steps are in fp32, whatever the model is computed in. In bf16
losses depend on the number of ranks: another order of sums changes a gradient by 1e-7, which
changes an update in bf16 by 0.4 to 1.4 %, in fp32 by 2e-5.

ZeRO partitions one bucket of parameters at world_size - 1 borders, and each border can cut one
matrix. The ranks that hold parts of a cut matrix exchange these parts. Each of them computes the
update of the whole matrix, and applies it to its own part. Therefore all parameters form a single
bucket, whose gradients are sent after the last backward pass. With one bucket per layer, borders
would cut nearly every matrix, and several ranks would repeat the work for each.
"""

import itertools
import math
import sys
from functools import cached_property
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from trainer.optim.adamw import AdamW
from trainer.optim.sharded import Fragment

MOMENTUM = 0.95
ADAMS_RMS = 0.2
"""Root mean square of a typical update of AdamW, to which a matrix's update is scaled.

An orthogonal matrix times sqrt(max(rows, columns)) has a root mean square of 1.
"""

STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the polynomial of each step of Newton-Schulz."""


class Muon(AdamW):
    """Updates the matrices of layers by Muon, and all other parameters by AdamW.

    It keeps the states of AdamW. For matrices of layers, "exp_avg" is the momentum, and
    "exp_avg_sq" stays zero.
    """

    bucket_elements = sys.maxsize

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # The shapes of the matrices of layers, by the index of the parameter.
        self._shapes = {
            index: parameter.shape
            for index, (name, parameter) in enumerate(self._parameters.items())
            if ".layers." in name and parameter.ndim == 2
        }

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
        pieces = self._gather({self.fragments[i].index: gradients[i] for i in matrices})
        for i in matrices:
            fragment = self.fragments[i]
            shape = self._shapes[fragment.index]
            direction = torch.cat(pieces[fragment.index]).view(shape)
            if self.settings.muon_precision == "bf16":
                direction = direction.bfloat16()
            update = orthogonalise(direction).reshape(-1)
            own_update = update.narrow(0, fragment.start, fragment.numel)
            scale = ADAMS_RMS * math.sqrt(max(shape))
            weights[i].sub_(own_update, alpha=learning_rate * scale)

    @cached_property
    def _shared(self) -> list[list[Fragment]]:
        """The fragments of all matrices that this rank holds in part only.

        There is one list per rank, in the order of ranks: the fragments of these matrices that the
        rank holds, this rank included. All ranks must read this attribute together for the first
        time, because its computation exchanges fragments.
        """
        fragments_of_ranks = [self.fragments] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(fragments_of_ranks, self.fragments)
        split_matrices = {
            fragment.index
            for fragment in self.fragments
            if fragment.index in self._shapes
            and fragment.numel < self._shapes[fragment.index].numel()
        }
        return [
            [fragment for fragment in fragments if fragment.index in split_matrices]
            for fragments in fragments_of_ranks
        ]

    def _gather(self, mine: dict[int, Tensor]) -> dict[int, list[Tensor]]:
        """Exchanges parts of matrices with the ranks that hold the other parts.

        All ranks call it together.

        Args:
            mine: By the index of each matrix among the parameters, the part of it that this rank
                holds, flattened.

        Returns:
            By the same indices, all parts of the matrix. They follow each other in the flattened
            matrix.
        """
        parts = {index: [part] for index, part in mine.items()}
        if not self.asks_other_ranks:
            return parts
        expected = list(itertools.chain(*self._shared))
        sizes = [fragment.numel for fragment in expected]
        received = self.owned[0].new_empty(sum(sizes))
        # A rank sends its part of a matrix once for each part that the receiver holds of it.
        torch.distributed.all_to_all_single(
            received,
            torch.cat([received[:0], *(mine[fragment.index] for fragment in expected)]),
            [sum(fragment.numel for fragment in fragments) for fragments in self._shared],
            [
                sum(mine[fragment.index].numel() for fragment in fragments)
                for fragments in self._shared
            ],
        )
        parts |= {fragment.index: [] for fragment in expected}
        for fragment, part in zip(expected, received.split_with_sizes(sizes), strict=True):
            parts[fragment.index].append(part)
        return parts


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
