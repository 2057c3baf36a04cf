"""Finds weights that changed by themselves, as no hardware catches every flipped bit.

Two things must hold before an update: the model's weights are the same on all ranks, and what a
rank updates (its fp32 weights and moments) is what the update before left.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module

from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks

CORRUPTED = 76
"""Exit code of a run that found corrupted weights."""


class CorruptWeightsError(Exception):
    """Ranks hold different weights; names those at fault. The newest checkpoint is still good."""


class WeightsCheck:
    """Compares weights every `interval` updates, on the way into the optimizer's step."""

    def __init__(
        self, model: Module, optimizer: ShardedOptimizer, ranks: Ranks, interval: int
    ) -> None:
        """Hooks into the optimizer; an interval of 0 checks never."""
        self._parameters = list(model.parameters())
        self._optimizer, self._ranks, self._interval = optimizer, ranks, interval
        self._calls = 0
        self._left: int | None = None  # checksum of what this rank updates after its last update
        if interval:
            optimizer.register_step_pre_hook(self._before_step)
            optimizer.register_step_post_hook(self._after_step)

    def forget(self) -> None:
        """Says that something else than an update is about to change what this rank updates."""
        self._left = None

    def check(self) -> None:
        """Compares now, called by all ranks; a CorruptWeightsError is raised on all alike."""
        if not self._interval:
            return
        has_drifted = self._left is not None and self._left != self._own()
        # Under ZeRO-3 no two ranks hold the same weights.
        bits = 0 if self._optimizer.has_partitioned_weights else int(checksum(self._parameters))
        mine = torch.tensor([bits, has_drifted], dtype=torch.int64)
        rows = [torch.zeros_like(mine) for _ in range(self._ranks.world_size)]
        torch.distributed.all_gather(rows, mine, group=self._ranks.counts_group)
        suspects = find_suspects([(int(row[0]), bool(row[1])) for row in rows])
        if suspects:
            hosts = self._ranks.gather(platform.node())
            named = " and ".join(f"rank {rank} on {hosts[rank]}" for rank in suspects)
            raise CorruptWeightsError(
                f"the weights of {named} changed by themselves: memory or the device is at fault."
                " Nothing was saved since; take that node out, then the same command goes back to"
                " the newest checkpoint"
            )

    def _before_step(self, *_: object) -> None:
        self._calls += 1
        if self._calls % self._interval == 0:
            self.check()

    def _after_step(self, *_: object) -> None:
        self._left = self._own() if (self._calls + 1) % self._interval == 0 else None

    def _own(self) -> int:
        kinds = ("fp32", *self._optimizer.state_names)
        return int(checksum(tensor for kind in kinds for tensor in self._optimizer.tensors(kind)))


def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of all bits read as integers, int64 with wrap-around: any one flipped bit changes it."""
    return torch.stack([_sum_words(tensor.detach().view(-1)) for tensor in tensors]).sum()


def _sum_words(flat: Tensor) -> Tensor:
    """Eight bytes at a time, 20 times as fast as smaller words; unaligned ends are summed apart."""
    per_word, small = {2: (4, torch.int16), 4: (2, torch.int32)}[flat.element_size()]
    start = min(-flat.storage_offset() % per_word, flat.numel())
    stop = start + (flat.numel() - start) // per_word * per_word
    ends = torch.cat([flat[:start].view(small), flat[stop:].view(small)]).sum(dtype=torch.int64)
    return flat[start:stop].view(torch.int64).sum() + ends if start < stop else ends


def find_suspects(rows: Sequence[tuple[int, bool]]) -> list[int]:
    """Ranks at fault, by every rank's checksum and whether it drifted.

    They are those that drifted; else those outside the majority; all where there is none.
    """
    if drifted := [rank for rank, (_, has_drifted) in enumerate(rows) if has_drifted]:
        return drifted
    (common, votes), *others = Counter(value for value, _ in rows).most_common()
    is_common = votes > len(rows) / 2 or not others
    return [rank for rank, (value, _) in enumerate(rows) if not is_common or value != common]
