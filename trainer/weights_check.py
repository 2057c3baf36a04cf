"""Finds weights that changed by themselves: a flipped bit in memory that no checksum of hardware caught.

Before an update, and before a checkpoint, the weights of all ranks must be the same, and under ZeRO what a rank
updates must be what its part of the model was rounded from. Moments have no second copy and are not checked.
"""

import platform
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module

from trainer.optim.sharded import ShardedOptimizer
from trainer.ranks import Ranks

CORRUPTED = 76
"""Exit code of a run that found corrupted weights."""


class CorruptWeightsError(Exception):
    """Ranks hold different weights; names those at fault. Running again continues from the newest checkpoint."""


class WeightsCheck:
    """Compares weights over ranks every `interval` updates, on the way into the optimizer's step."""

    def __init__(self, model: Module, optimizer: ShardedOptimizer, ranks: Ranks, interval: int) -> None:
        """Hooks into the optimizer.

        Args:
            model: Its weights.
            optimizer: Updates them, or this rank's partition of them.
            ranks: This rank and the others.
            interval: Updates between two checks; 0 checks never.
        """
        self._parameters = dict(model.named_parameters())
        self._optimizer, self._ranks, self._interval = optimizer, ranks, interval
        self._calls = 0
        if interval and ranks.world_size > 1:
            optimizer.register_step_pre_hook(self._before_step)

    def check(self) -> None:
        """Compares now; called by all ranks.

        Raises:
            CorruptWeightsError: On all ranks alike.
        """
        if not self._interval or self._ranks.world_size == 1:
            return
        # Under ZeRO-3 no two ranks hold the same.
        is_shared = not self._optimizer.has_partitioned_weights
        bits = int(checksum(self._parameters.values())) if is_shared else 0
        mine = torch.tensor([bits, self._has_drifted()], dtype=torch.int64)
        rows = [torch.zeros_like(mine) for _ in range(self._ranks.world_size)]
        torch.distributed.all_gather(rows, mine, group=self._ranks.counts_group)
        suspects = find_suspects([(int(row[0]), bool(row[1])) for row in rows])
        if suspects:
            hosts: list[Any] = [None] * self._ranks.world_size
            torch.distributed.all_gather_object(hosts, platform.node(), group=self._ranks.counts_group)
            named = " and ".join(f"rank {rank} on {hosts[rank]}" for rank in suspects)
            raise CorruptWeightsError(
                f"the weights of {named} changed by themselves: memory or the device is at fault. Nothing was saved "
                "since; take that node out, then the same command goes back to the newest checkpoint"
            )

    def _before_step(self, *_: object) -> None:
        self._calls += 1
        if self._calls % self._interval == 0:
            self.check()

    def _has_drifted(self) -> bool:
        """Whether what this rank updates is not what its part of the model was rounded from."""
        if not self._optimizer.is_partitioned:
            return False
        owned, differs = self._optimizer.owned, []
        for piece in self._optimizer.fragments:
            parameter: Any = self._parameters[piece.name]
            is_whole = not self._optimizer.has_partitioned_weights
            held, start = (parameter.detach(), piece.start) if is_whole else (parameter.ds_tensor, 0)
            part = held.view(-1).narrow(0, start, piece.numel)
            differs.append((part != piece.of(owned).to(part.dtype)).any())
        return bool(torch.stack(differs).any()) if differs else False


def checksum(tensors: Any) -> Tensor:
    """Sum of all bits read as integers, int64: any one flipped bit changes it."""
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    parts = [each.detach().view(-1).view(words[each.element_size()]).sum(dtype=torch.int64) for each in tensors]
    return torch.stack(parts).sum()


def find_suspects(rows: Sequence[tuple[int, bool]]) -> list[int]:
    """Ranks at fault: those that drifted; else those outside the majority; all where there is none.

    Args:
        rows: Checksum of every rank, and whether it drifted.
    """
    drifted = [rank for rank, (_, has_drifted) in enumerate(rows) if has_drifted]
    if drifted:
        return drifted
    (common, votes), *others = Counter(value for value, _ in rows).most_common()
    if not others:
        return []
    has_majority = votes > len(rows) / 2
    return [rank for rank, (value, _) in enumerate(rows) if not has_majority or value != common]
