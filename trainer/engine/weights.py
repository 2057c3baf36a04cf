"""Gathers new weights under ZeRO-1 and 2, while the next step computes its first layers.

After an update, each rank has the new weights of its own part of every bucket
(trainer/engine/gradients.py). It needs those of all parts. So each bucket is gathered from all
ranks, which runs in the background.

What is gathered first: buckets are gathered in the order in which a forward pass reads them. This
is the reverse of the order in which their gradients are sent, so the embeddings are first. Weights
arrive in that order too, on all ranks.

Who waits: until a gather was waited for, the memory of its weights holds anything. A forward pass
waits by itself: a hook on each block of the model waits, before the block computes, for the bucket
that has the last of its weights, and so for all buckets before it. Backward passes begin when all
weights have arrived. Everyone else takes the model from `trainer.engine.zero.current_model`, which
waits for all weights.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module

from trainer.optim.sharded import ShardedOptimizer


class WeightGathers:
    """Gathers the weights of a model in the background; the module's docstring says when."""

    def __init__(
        self,
        optimizer: ShardedOptimizer,
        groups: Sequence[Collection[Tensor]],
        flats: Sequence[Tensor],
    ) -> None:
        """Takes the buckets in the order in which their gradients are sent.

        Args:
            optimizer: The optimizer, which updates one fp32 partition of each bucket on this rank.
            groups: The parameters of each bucket.
            flats: The weights of each bucket as one flat tensor, whose parts are the parameters.
                It consists of one piece per rank, all of one size.
        """
        self._optimizer = optimizer
        self._flats = flats
        self._bucket_of = {
            parameter: bucket for bucket, group in enumerate(groups) for parameter in group
        }
        self._on_the_way: deque[tuple[int, Any]] = deque()

    def guard(self, model: Module, blocks: Sequence[Module]) -> None:
        """Makes each block of a model wait for its weights before it computes.

        If a weight is in no block, the model waits for it before it computes anything.

        Args:
            model: The model.
            blocks: Modules of the model, in the order in which its forward pass calls them. A block
                may also read weights of earlier blocks.
        """
        for block in blocks:
            self._guard_weights(block, block.parameters())
        in_blocks = {parameter for block in blocks for parameter in block.parameters()}
        self._guard_weights(model, self._bucket_of.keys() - in_blocks)

    def start(self) -> None:
        """Begins to gather the new weights of all ranks after an update, and returns at once.

        First the weights of an earlier call are waited for. Then this rank's fp32 partition of each
        bucket is copied into the bucket's flat tensor, in that tensor's number format. The pieces
        of other ranks arrive later: `finish`, and the modules that `guard` was given, wait for
        them. Every rank has to call it once per update.
        """
        self.finish()
        world_size = torch.distributed.get_world_size()
        rank = torch.distributed.get_rank()
        partitions = self._optimizer.owned
        for bucket in reversed(range(len(self._flats))):
            weights = self._flats[bucket]
            piece = weights.detach().view(world_size, -1)[rank]
            piece.copy_(partitions[bucket].detach())
            if world_size > 1:
                work = torch.distributed.all_gather_into_tensor(weights, piece, async_op=True)
                self._on_the_way.append((bucket, work))

    def finish(self) -> None:
        """Waits until all weights have arrived."""
        self._wait_for(0)

    def _guard_weights(self, module: Module, parameters: Iterable[Tensor]) -> None:
        """Makes a module wait for some weights before it computes.

        Args:
            module: The module.
            parameters: The weights. Those that are frozen are never gathered, and left out.
        """
        buckets = [self._bucket_of[weight] for weight in parameters if weight in self._bucket_of]
        if buckets:
            last = min(buckets)
            module.register_forward_pre_hook(partial(self._before_forward, last))

    def _before_forward(self, bucket: int, *_: object) -> None:
        """Waits for a bucket; torch calls it before a module that reads the bucket computes."""
        self._wait_for(bucket)

    def _wait_for(self, bucket: int) -> None:
        """Waits until a bucket has arrived, and so all buckets that are gathered before it.

        On a GPU the process does not wait: later work on the GPU is queued behind the bucket.
        """
        while self._on_the_way and self._on_the_way[0][0] >= bucket:
            _, work = self._on_the_way.popleft()
            work.wait()
