"""Finds the instances that make the norm of a step's gradient what it is.

Two ways are used, and both are exact up to rounding:

- Halves: the step is made again without one half of the instances, then without the other. The half
  without which the norm is smaller is halved further, until one instance is left. All other
  instances stay in the step.
- Shares: the gradient G of a step is the sum of what its instances add to it. The share of an
  instance that adds g is <g, G> / <G, G>. All shares of a step sum to 1, so they also tell if
  several instances make the norm. An instance that pulls the other way has a negative share.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from pipeline.shards.block import Block, concatenate_blocks
from trainer.engine.train_step import forward_sums
from trainer.model.bert import BertForPreTraining
from trainer.pretrain.objectives import prepare_micro_batch
from trainer.stream.batches.pack import MicroBatch, cut_micro_batches, pack_micro_batches

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Half:
    """Instances of a step that were left out together, and what that did to the norm.

    Attributes:
        first_slot: The slot of the first of the instances.
        last_slot: The slot of the last one.
        norm_without: The norm of the gradient of the step without these instances.
    """

    first_slot: int
    last_slot: int
    norm_without: float


@dataclass(frozen=True)
class Share:
    """What one instance adds to the gradient of a step.

    Attributes:
        slot: The slot of the instance, its number in the global batch.
        share: Its share of the gradient, see the docstring of this module.
        own_norm: The norm of what it adds.
    """

    slot: int
    share: float
    own_norm: float


def find_by_halves(norm_without: Callable[[range], float], num_slots: int) -> Iterator[Half]:
    """Searches for the instance of a step that makes the norm of its gradient large, by halving.

    The instances of the step are divided into two halves, and the norm is computed without each of
    them. The half without which the norm is smaller is divided again, until it is one instance. The
    search is lazy: the norms of a pair of halves are computed when its first half is asked for.

    Args:
        norm_without: Takes a range of slots, and returns the norm of the step's gradient without
            the instances in these slots. A norm that is NaN counts as the larger one.
        num_slots: The number of instances of the step.

    Yields:
        The two halves of every division, first slots first. There are none if the step has one
            instance.
    """
    slots = range(num_slots)
    while len(slots) > 1:
        middle = len(slots) // 2
        pair = [slots[:middle], slots[middle:]]
        halves = [Half(half[0], half[-1], norm_without(half)) for half in pair]
        yield from halves
        norms = [
            math.inf if math.isnan(half.norm_without) else half.norm_without for half in halves
        ]
        slots = pair[norms.index(min(norms))]


class StepGradient:
    """Computes gradients of one step's instances, at fixed weights and without dropout.

    Everything is computed in fp32 on the CPU, whatever the run was trained with.

    Attributes:
        num_passes: The number of times that the step was made again, whole or without instances.
        num_single_passes: The number of forward and backward passes of single instances.
    """

    def __init__(
        self,
        model: BertForPreTraining,
        block: Block,
        objective: str,
        nsp_weight: float,
        micro_tokens: int,
    ) -> None:
        """Remembers the step.

        Args:
            model: The model with the weights just before the step. Parts that are not trained are
                frozen.
            block: The instances of the step, in the order of their slots, with their masks.
            objective: The objective of the run.
            nsp_weight: The weight of the loss of next sentence prediction; 0 leaves it out.
            micro_tokens: The most tokens of one forward pass.
        """
        self.num_passes = 0
        self.num_single_passes = 0
        self._model = model.eval()
        # torch wants arrays that it may write to; those of a block that was read are not.
        columns = {column.name: np.array(getattr(block, column.name)) for column in fields(block)}
        self._block = Block(**columns)
        self._objective = objective
        self._nsp_weight = nsp_weight
        self._micro_tokens = micro_tokens

    @property
    def num_slots(self) -> int:
        """The number of instances of the step."""
        return self._block.num_instances

    def norm_without(self, slots: Sequence[int]) -> float:
        """Returns the norm of the gradient that the step would have without some instances.

        The losses are means over the instances that remain.

        Args:
            slots: The slots of the instances that are left out, but not all slots.
        """
        self.num_passes += 1
        remaining = np.setdiff1d(np.arange(self.num_slots), np.asarray(slots, np.int64))
        block = _take(self._block, remaining)
        cuts = cut_micro_batches(block.offsets, (0, block.num_instances), self._micro_tokens)
        batches = self._prepare(block, cuts)
        return norm_of(self._add_up(batches, *count_labels(batches)))

    def share_each(self) -> list[Share]:
        """Returns the share of each instance, the largest first.

        Shares that are not numbers, because a gradient is not finite, come before all others.
        """
        num_slots = self.num_slots
        cuts = cut_micro_batches(self._block.offsets, (0, num_slots), self._micro_tokens)
        batches = self._prepare(self._block, cuts)
        counts = count_labels(batches)
        self.num_passes += 1
        whole = self._add_up(batches, *counts)
        squared_norm = _inner(whole, whole) or 1.0  # without a gradient, all shares are 0
        shares = []
        for slot, batch in enumerate(
            self._prepare(self._block, [(slot, slot + 1) for slot in range(num_slots)])
        ):
            self.num_single_passes += 1
            own = self._add_up([batch], *counts)
            shares.append(Share(slot, _inner(own, whole) / squared_norm, norm_of(own)))
        return sorted(shares, key=_rank_of)

    def _prepare(self, block: Block, cuts: Sequence[tuple[int, int]]) -> list[MicroBatch]:
        """Returns instances as micro-batches that are prepared for the objective."""
        packed = pack_micro_batches(block, cuts)
        return [prepare_micro_batch(batch, self._objective) for batch in packed]

    def _add_up(self, batches: Sequence[MicroBatch], masked: int, instances: int) -> list[Tensor]:
        """Returns the gradient of the loss of some micro-batches, as `gradient_of` does."""
        return gradient_of(self._model, batches, masked, instances, self._nsp_weight)


def gradient_of(
    model: BertForPreTraining,
    batches: Sequence[MicroBatch],
    masked: int,
    instances: int,
    nsp_weight: float,
) -> list[Tensor]:
    """Returns the gradient of the loss of some micro-batches, one tensor per trained parameter.

    Args:
        model: The model, on the CPU.
        batches: The micro-batches, prepared for the objective.
        masked: The number of masked tokens by which the loss of masked tokens is divided.
        instances: The number of instances by which the loss of sentence pairs is divided.
        nsp_weight: The weight of the loss of sentence pairs; 0 leaves it out.
    """
    model.zero_grad(set_to_none=True)
    for batch in batches:
        sums = forward_sums(model, batch, CPU)
        loss = sums.mlm_nll / masked
        if nsp_weight:
            loss = loss + nsp_weight * sums.nsp_nll / instances
        torch.autograd.backward(loss)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for parameter in trained
    ]


def norm_of(gradients: Sequence[Tensor]) -> float:
    """Returns the L2 norm of a gradient that is given as several tensors."""
    return math.sqrt(_inner(gradients, gradients))


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Returns the inner product of two gradients, summed in fp64."""
    products = [
        torch.dot(one.flatten().double(), other.flatten().double())
        for one, other in zip(left, right, strict=True)
    ]
    return float(torch.stack(products).sum())


def count_labels(batches: Sequence[MicroBatch]) -> tuple[int, int]:
    """Returns the numbers of masked tokens and of instances of micro-batches, each at least 1."""
    masked = sum(len(batch.masked_labels) for batch in batches)
    instances = sum(len(batch.is_random_next) for batch in batches)
    return max(1, masked), max(1, instances)


def _take(block: Block, rows: np.ndarray) -> Block:
    """Returns some rows of a block.

    Args:
        block: The block.
        rows: Numbers of rows, ascending.
    """
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    return concatenate_blocks([block.slice(int(run[0]), int(run[-1]) + 1) for run in runs])


def _rank_of(share: Share) -> tuple[bool, float]:
    """Returns the key by which shares are sorted: those that are no numbers first, then by size."""
    return not math.isnan(share.share), -share.share
