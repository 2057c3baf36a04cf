"""Items to packed micro-batches: what makes a step, which rank reads it, and its tensors.

Everything is in memory on every rank, so every rank knows every count.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.seeds import seed_of
from trainer.finetune.task import Item
from trainer.model.packed_inputs import PackedInputs, pack_sequences


@dataclass(frozen=True)
class TaskBatch(PackedInputs):
    """Packed sequences of items; an empty one has no sequence. I as in task_heads.

    Attributes:
        item_starts: [I+1] int64; item i is sequences item_starts[i] to item_starts[i + 1] - 1.
        labels: Flat, item after item; int64 or float32.
    """

    item_starts: Tensor
    labels: Tensor


def pack_items(items: Sequence[Item], device: torch.device) -> TaskBatch:
    """The items as one micro-batch on the device."""
    sequences = [sequence for item in items for sequence in item.sequences]
    in_a = [each.segment_a_length for each in sequences]
    inputs = pack_sequences([each.input_ids for each in sequences], device, in_a)
    labels = np.concatenate([item.labels for item in items] or [np.zeros(0, np.int64)])
    starts = np.cumsum([0, *(len(item.sequences) for item in items)])
    return TaskBatch(
        **vars(inputs),
        item_starts=torch.from_numpy(starts).to(device, non_blocking=True),
        labels=torch.from_numpy(labels).to(device, non_blocking=True),
    )


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


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    Attributes:
        items: The items of the global batch.
        ranks: Micro-batches of each rank, as many on every one; those that a rank lacks are empty.
    """

    items: list[Item]
    ranks: list[list[list[Item]]]


def make_step(items: Sequence[Item], world_size: int, micro_tokens: int) -> Step:
    """Deals a global batch over ranks and cuts each share into micro-batches."""
    shares = [cut_items(items[rank::world_size], micro_tokens) for rank in range(world_size)]
    most = max(map(len, shares))
    empty: list[Item] = []
    return Step(list(items), [[*share, *[empty] * (most - len(share))] for share in shares])


def iterate_steps(
    items: Sequence[Item],
    *,
    global_batch: int,
    epochs: int,
    seed: int,
    world_size: int,
    micro_tokens: int,
) -> Iterator[Step]:
    """All steps of a training run: every epoch has an order of its own and a shorter last batch."""
    for epoch in range(epochs):
        order = shuffled_order(len(items), seed, epoch)
        for start in range(0, len(order), global_batch):
            yield make_step(
                [items[index] for index in order[start : start + global_batch]],
                world_size,
                micro_tokens,
            )
