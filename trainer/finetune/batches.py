"""Forms optimizer steps from items, deals them out to ranks, and packs them into micro-batches.

Every rank has all items in memory and forms the steps of all ranks. Therefore ranks need not
exchange which items each of them trains on.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.seeds import seed_of
from trainer.finetune.task import Item
from trainer.model.packed_inputs import PackedInputs, pack_sequences


@dataclass(frozen=True)
class Recipe:
    """The values that one training run has for the settings that a search tries out.

    `finetune` trains one run for every combination of these values.

    Attributes:
        global_batch: Number of items of an optimizer step, over all ranks.
        peak_lr: The learning rate after the warm-up.
        epochs: How often every item is seen.
        seed: The seed of new weights, of the order of items, and of dropout.
    """

    global_batch: int
    peak_lr: float
    epochs: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the run in file names and in output, such as "batch32-lr5e-05-epochs3-seed0"."""
        return f"batch{self.global_batch}-lr{self.peak_lr:g}-epochs{self.epochs}-seed{self.seed}"

    def num_steps(self, num_items: int) -> int:
        """Returns the number of optimizer steps of all epochs together.

        Args:
            num_items: The number of training items.
        """
        return self.epochs * math.ceil(num_items / self.global_batch)


@dataclass(frozen=True)
class TaskBatch(PackedInputs):
    """A micro-batch: the packed sequences of some items, with their labels.

    Attributes:
        item_starts: [items + 1], integers. Sequences item_starts[i] to item_starts[i + 1] - 1
            belong to item i.
        labels: The labels of all items, one item after another: int64, or float32 for numbers.
    """

    item_starts: Tensor
    labels: Tensor


class Step(NamedTuple):
    """The items of one optimizer step, and how they are divided among ranks and micro-batches.

    Attributes:
        items: The items of all ranks.
        ranks: `ranks[r][m]` are the items of micro-batch m of rank r. All ranks have the same
            number of micro-batches, because a rank with fewer backward passes would keep the others
            waiting. Missing micro-batches are empty lists.
    """

    items: list[Item]
    ranks: list[list[list[Item]]]


def pack_items(items: Sequence[Item], device: torch.device) -> TaskBatch:
    """Packs the sequences of items end to end into one micro-batch, without padding.

    Args:
        items: The items. Without any, the micro-batch has no sequences and no labels.
        device: Where the tensors of the micro-batch are.
    """
    sequences = [sequence for item in items for sequence in item.sequences]
    segment_a_lengths = [sequence.segment_a_length for sequence in sequences]
    ids = [sequence.input_ids for sequence in sequences]
    inputs = pack_sequences(ids, device, segment_a_lengths)
    starts = np.cumsum([0, *(len(item.sequences) for item in items)])
    labels = np.concatenate([item.labels for item in items] or [np.zeros(0, np.int64)])
    return TaskBatch(
        **vars(inputs),
        item_starts=torch.from_numpy(starts).to(device),
        labels=torch.from_numpy(labels).to(device),
    )


def cut_items(items: Sequence[Item], micro_tokens: int) -> list[list[Item]]:
    """Cuts a list of items into lists of at most `micro_tokens` tokens each, in order.

    The sequences of an item stay together: an item with more than `micro_tokens` tokens is alone in
    its list.
    """
    cuts: list[list[Item]] = []
    room = 0
    for item in items:
        size = sum(len(sequence.input_ids) for sequence in item.sequences)
        if not cuts or size > room:
            cuts.append([])
            room = micro_tokens
        cuts[-1].append(item)
        room -= size
    return cuts


def shuffled_order(num_items: int, seed: int, epoch: int) -> list[int]:
    """Returns the indices 0 to num_items - 1 in a random order that depends on seed and epoch.

    It does not depend on the generators of numpy or torch, which may change with their versions.
    """
    draw = random.Random(seed_of(f"{seed}/order/{epoch}")).getrandbits
    keys = [draw(64) for _ in range(num_items)]
    return sorted(range(num_items), key=lambda index: (keys[index], index))


def make_step(items: list[Item], world_size: int, micro_tokens: int) -> Step:
    """Deals the items of a step out to the ranks, and cuts each rank's items into micro-batches.

    Args:
        items: The items of the step. Rank r gets every item whose index modulo `world_size` is r.
        world_size: The number of ranks.
        micro_tokens: The most tokens of a micro-batch (`cut_items`).
    """
    shares = [cut_items(items[rank::world_size], micro_tokens) for rank in range(world_size)]
    most = max(map(len, shares))
    empty: list[Item] = []
    return Step(items, [[*share, *[empty] * (most - len(share))] for share in shares])


def iterate_steps(
    items: Sequence[Item], recipe: Recipe, world_size: int, micro_tokens: int
) -> Iterator[Step]:
    """Yields the steps of a run, lazily.

    Every epoch goes through all items once, each time in another order. If the number of items is
    not a multiple of the global batch, the last step of each epoch has fewer items.

    Args:
        items: All training items.
        recipe: The settings of the run.
        world_size: The number of ranks.
        micro_tokens: The most tokens of a micro-batch.
    """
    for epoch in range(recipe.epochs):
        order = shuffled_order(len(items), recipe.seed, epoch)
        for start in range(0, len(order), recipe.global_batch):
            chosen = [items[index] for index in order[start : start + recipe.global_batch]]
            yield make_step(chosen, world_size, micro_tokens)
