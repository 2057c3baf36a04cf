"""Items to packed micro-batches: what makes a step, which rank reads it, and its tensors.

Everything is in memory on every rank, so every rank knows every count.
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
    """What one run of a search is trained with; a global batch is items of a step, of all ranks."""

    global_batch: int
    peak_lr: float
    epochs: int
    seed: int

    @property
    def name(self) -> str:
        """The run's name for files and people."""
        return f"batch{self.global_batch}-lr{self.peak_lr:g}-epochs{self.epochs}-seed{self.seed}"

    def num_steps(self, num_items: int) -> int:
        """Optimizer steps of the run."""
        return self.epochs * math.ceil(num_items / self.global_batch)


@dataclass(frozen=True)
class TaskBatch(PackedInputs):
    """Packed sequences of items: item i is sequences item_starts[i] to item_starts[i + 1] - 1.

    Labels are flat, item after item, int64 or float32.
    """

    item_starts: Tensor
    labels: Tensor


class Step(NamedTuple):
    """The items of a global batch, and as many micro-batches for each rank; some are empty."""

    items: list[Item]
    ranks: list[list[list[Item]]]


def pack_items(items: Sequence[Item], device: torch.device) -> TaskBatch:
    """The items as one micro-batch on the device."""
    sequences = [sequence for item in items for sequence in item.sequences]
    in_a = [each.segment_a_length for each in sequences]
    inputs = pack_sequences([each.input_ids for each in sequences], device, in_a)
    starts = np.cumsum([0, *(len(item.sequences) for item in items)])
    labels = np.concatenate([item.labels for item in items] or [np.zeros(0, np.int64)])
    starts_I1, labels_N = (torch.from_numpy(each).to(device) for each in (starts, labels))
    return TaskBatch(**vars(inputs), item_starts=starts_I1, labels=labels_N)


def cut_items(items: Sequence[Item], micro_tokens: int) -> list[list[Item]]:
    """Neighbouring items together while they fit into micro_tokens; an item is never cut."""
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
    """A permutation that depends on its arguments only, whatever a library's generator does."""
    draw = random.Random(seed_of(f"{seed}/order/{epoch}")).getrandbits
    keys = [draw(64) for _ in range(num_items)]
    return sorted(range(num_items), key=lambda index: (keys[index], index))


def make_step(items: list[Item], world_size: int, micro_tokens: int) -> Step:
    """Deals a global batch over ranks and cuts each share into micro-batches."""
    shares = [cut_items(items[rank::world_size], micro_tokens) for rank in range(world_size)]
    most = max(map(len, shares))
    empty: list[Item] = []
    return Step(items, [[*share, *[empty] * (most - len(share))] for share in shares])


def iterate_steps(
    items: Sequence[Item], recipe: Recipe, world_size: int, micro_tokens: int
) -> Iterator[Step]:
    """All steps of a run: every epoch has an order of its own and a shorter last batch."""
    for epoch in range(recipe.epochs):
        order = shuffled_order(len(items), recipe.seed, epoch)
        for start in range(0, len(order), recipe.global_batch):
            chosen = [items[index] for index in order[start : start + recipe.global_batch]]
            yield make_step(chosen, world_size, micro_tokens)
