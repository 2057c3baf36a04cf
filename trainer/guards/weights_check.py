"""Finds weights in which a bit has flipped: no hardware catches every such fault.

Two facts are checked before an update. The model's weights must be equal on all ranks, except under
ZeRO-3, where each rank holds other weights. And the tensors that a rank updates (its fp32 weights
and the optimizer's moments) must be as the previous update left them.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from trainer.engine.zero import current_model
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks

CORRUPTED = 76
"""Exit code of a run that found corrupted weights."""


class CorruptWeightsError(Exception):
    """An error that names the ranks whose weights have changed without an update.

    Weights are checked before they are saved, so the newest checkpoint is still good.
    """


class WeightsCheck:
    """Checks the weights every `interval` updates, just before the optimizer's step."""

    def __init__(
        self, engine: Any, optimizer: ShardedOptimizer, ranks: Ranks, interval: int
    ) -> None:
        """Registers the check with the optimizer's step.

        Args:
            engine: DeepSpeed's engine around the model that is trained.
            optimizer: The optimizer of the engine.
            ranks: This process and the others of the run.
            interval: Number of updates between two checks; 0 never checks.
        """
        self._engine = engine
        self._optimizer = optimizer
        self._ranks = ranks
        self._interval = interval
        self._calls = 0
        # The checksum of this rank's updated tensors after the update before the next check.
        self._left: int | None = None
        if interval:
            optimizer.register_step_pre_hook(self._before_step)
            optimizer.register_step_post_hook(self._after_step)

    def forget(self) -> None:
        """Drops the checksum of the last update, so that the next check does not compare with it.

        Call this method before anything other than an update changes the tensors that this rank
        updates, such as a new phase that resets the optimizer.
        """
        self._left = None

    def check(self) -> None:
        """Checks the weights now; every rank has to call it. It does nothing if the interval is 0.

        Raises:
            CorruptWeightsError: Weights of some rank have changed without an update. It is raised
                on all ranks.
        """
        if not self._interval:
            return
        has_drifted = self._left is not None and self._left != self._checksum()
        # Under ZeRO-3 no two ranks hold the same weights.
        is_shared = not self._optimizer.has_partitioned_weights
        bits = int(checksum(current_model(self._engine).parameters())) if is_shared else 0
        row = torch.tensor([bits, has_drifted], dtype=torch.int64)
        rows = [torch.zeros_like(row) for _ in range(self._ranks.world_size)]
        torch.distributed.all_gather(rows, row, group=self._ranks.counts_group)
        suspects = find_suspects([(int(value), bool(drifted)) for value, drifted in rows])
        if suspects:
            hosts = self._ranks.gather(platform.node())
            names = " and ".join(f"rank {rank} on {hosts[rank]}" for rank in suspects)
            raise CorruptWeightsError(
                f"the weights of {names} changed by themselves: memory or the device is at fault."
                " Nothing was saved since; take that node out, then the same command goes back to"
                " the newest checkpoint"
            )

    def _before_step(self, *_: object) -> None:
        """Checks the weights before every update whose number is a multiple of the interval."""
        self._calls += 1
        if self._calls % self._interval == 0:
            self.check()

    def _after_step(self, *_: object) -> None:
        """Keeps the checksum of the tensors that this rank updates, if the next step is checked."""
        self._left = self._checksum() if (self._calls + 1) % self._interval == 0 else None

    def _checksum(self) -> int:
        """Returns the checksum of the tensors that this rank updates: fp32 weights and moments."""
        kinds = ("fp32", *self._optimizer.state_names)
        return int(checksum(tensor for kind in kinds for tensor in self._optimizer.tensors(kind)))


def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the sum of the bits of all tensors, read as integers; a scalar, int64.

    It wraps around, and any single flipped bit changes it.

    Args:
        tensors: Tensors of 2-byte or 4-byte numbers.
    """
    return torch.stack([_sum_words(tensor.detach().view(-1)) for tensor in tensors]).sum()


def _sum_words(flat: Tensor) -> Tensor:
    """Returns the sum of a tensor's bits, read as integers; a scalar, int64.

    Words of 8 bytes are 20 times as fast as smaller ones. Elements before the first and after the
    last whole word are summed as integers of their own size.

    Args:
        flat: One-dimensional, of 2-byte or 4-byte numbers.
    """
    per_word, small = {2: (4, torch.int16), 4: (2, torch.int32)}[flat.element_size()]
    start = min(-flat.storage_offset() % per_word, flat.numel())
    stop = start + (flat.numel() - start) // per_word * per_word
    ends = torch.cat([flat[:start].view(small), flat[stop:].view(small)]).sum(dtype=torch.int64)
    if start >= stop:
        return ends
    return flat[start:stop].view(torch.int64).sum() + ends


def find_suspects(rows: Sequence[tuple[int, bool]]) -> list[int]:
    """Returns the ranks whose weights are at fault; none if all is well.

    A rank is at fault if its tensors changed between two updates. If there is no such rank, each
    rank whose checksum differs from the majority's is at fault. If there is no majority either, any
    rank may be at fault, so all are returned.

    Args:
        rows: For each rank, the checksum of its model's weights, and whether the tensors that it
            updates have changed since its last update.
    """
    drifted = [rank for rank, (_, has_drifted) in enumerate(rows) if has_drifted]
    if drifted:
        return drifted
    (common, votes), *others = Counter(value for value, _ in rows).most_common()
    has_majority = votes > len(rows) / 2 or not others
    return [rank for rank, (value, _) in enumerate(rows) if not has_majority or value != common]
