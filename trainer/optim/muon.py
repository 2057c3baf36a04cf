"""Muon (Jordan et al. 2024) for the matrices of the layers; AdamW for everything else.

A matrix moves along its Nesterov momentum, made nearly orthogonal by five steps of Newton-Schulz.
Its update's root mean square is AdamW's (Moonlight, arXiv 2502.16982, 2.2), so that learning rates
and weight decay carry over. The gradient is clipped by its global norm first. `torch.optim.Muon`
does the same, in bf16, with adjust_lr_fn="match_rms_adamw". Query, key and value are matrices each.

Products are in fp32 always, or losses would depend on the number of ranks: a gradient changed by
1e-7, as by another order of sums, changes an update in bf16 by 0.4 to 1.4 %, in fp32 by 2e-5.

ZeRO's partitions end within at most world_size - 1 matrices. The ranks that hold pieces of one, and
no others, exchange them; each of these ranks works out the whole update and takes its piece of it.
"""

import itertools
import math
from functools import cached_property
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from trainer.optim.adamw import AdamW
from trainer.optim.sharded import Fragment

MOMENTUM = 0.95
ADAMS_RMS = 0.2  # of an orthogonal matrix times sqrt(max(rows, columns)) the root mean square is 1
STEPS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)


class Muon(AdamW):
    """The first of AdamW's states is also the momentum of matrices, whose second stays zero."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._shapes = {
            index: each.shape
            for index, (name, each) in enumerate(self._parameters.items())
            if ".layers." in name and each.ndim == 2
        }

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        rate: float = self.param_groups[0]["lr"]
        weights, first, second = map(self.views, ("fp32", *self.state_names))
        for weight, fragment in zip(weights, self.fragments, strict=True):
            if fragment.decays:
                weight.mul_(1 - rate * self.settings.weight_decay)
        places = range(len(self.fragments))
        matrices = [i for i in places if self.fragments[i].index in self._shapes]
        everything = (weights, gradients, first, second)
        w, g, m, v = ([each[i] for i in places if i not in matrices] for each in everything)
        self._move(w, g, m, v, rate, 0.0, self.num_updates, divisor)
        for i in matrices:
            if divisor is not None:
                gradients[i].div_(divisor)
            first[i].lerp_(gradients[i], 1 - MOMENTUM)
            gradients[i].lerp_(first[i], MOMENTUM)
        pieces = self._gather({self.fragments[i].index: gradients[i] for i in matrices})
        for i in matrices:
            fragment, shape = self.fragments[i], self._shapes[self.fragments[i].index]
            update = orthogonalise(torch.cat(pieces[fragment.index]).view(shape)).reshape(-1)
            scale = ADAMS_RMS * math.sqrt(max(shape))
            weights[i].sub_(update.narrow(0, fragment.start, fragment.numel), alpha=rate * scale)

    @cached_property
    def _shared(self) -> list[list[Fragment]]:
        """Every rank's pieces of the matrices of which this rank holds a part."""
        everyone = [self.fragments] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, self.fragments)
        mine = [each for each in self.fragments if each.index in self._shapes]
        split = {each.index for each in mine if each.numel < self._shapes[each.index].numel()}
        return [[each for each in fragments if each.index in split] for fragments in everyone]

    def _gather(self, mine: dict[int, Tensor]) -> dict[int, list[Tensor]]:
        """All pieces, in order, of the matrices that this rank has a piece of, by their index."""
        found = {index: [piece] for index, piece in mine.items()}
        if not self.asks_other_ranks:
            return found
        expected = list(itertools.chain(*self._shared))
        sizes = [each.numel for each in expected]
        received = self.owned[0].new_empty(sum(sizes))
        torch.distributed.all_to_all_single(
            received,
            torch.cat([received[:0], *(mine[each.index] for each in expected)]),
            [sum(each.numel for each in pieces) for pieces in self._shared],
            [sum(mine[each.index].numel() for each in pieces) for pieces in self._shared],
        )
        found |= {each.index: [] for each in expected}
        for each, piece in zip(expected, received.split_with_sizes(sizes), strict=True):
            found[each.index].append(piece)
        return found


def orthogonalise(matrix: Tensor) -> Tensor:
    """About U V^T of the singular value decomposition U S V^T, S being 0.7 to 1.2 in its place."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    found = found / found.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if is_tall else found
