"""Whole weights out of what ZeRO has partitioned, partitions back into weights, and their fit."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, together

_REMEDY = "this version of DeepSpeed partitions in a way that is not known here; install the one in constraints.txt"


def is_zero3(engine: Any) -> bool:
    """Whether the weights themselves are partitioned."""
    return int(engine.zero_optimization_stage()) == 3


def iterate_weights(engine: Any, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """Names and whole weights on rank 0, one after another, each to be copied at once.

    Called, and run to its end, by all ranks: under ZeRO-3 they bring the weights together.
    """
    if not is_zero3(engine):
        yield from engine.module.state_dict().items() if ranks.rank == 0 else ()
        return
    import deepspeed

    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if ranks.rank == 0:
                yield name, parameter.detach()


def refresh_weights(engine: Any, optimizer: ShardedOptimizer) -> None:
    """Brings the model's weights in line with fp32 partitions that a checkpoint was loaded into."""
    if is_zero3(engine):
        zero = engine.optimizer
        zero._partition_all_parameters()
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)
    elif optimizer.is_partitioned:
        engine.optimizer.update_lp_params()


@torch.no_grad()
def check_partitions(engine: Any, optimizer: ShardedOptimizer, ranks: Ranks) -> None:
    """Refuses fragments, on which norms rest, that miss an element or hold another's."""
    everything = engine.module.named_parameters()
    parameters = {name: each for name, each in everything if each.requires_grad}
    covered = torch.zeros(len(parameters), dtype=torch.int64)
    with together(ranks):
        for piece in optimizer.fragments:
            covered[piece.index] += piece.numel
            found, whole = piece.of(optimizer.owned), parameters[piece.name]
            # Under ZeRO-3 ds_tensor is this rank's share, padding after it.
            expected, start = (whole.ds_tensor, 0) if is_zero3(engine) else (whole, piece.start)
            expected = expected.detach().view(-1).narrow(0, start, piece.numel)
            if found.shape != expected.shape or (found.to(whole.dtype) != expected).any():
                raise ValueError(
                    f"rank {ranks.rank} does not update the elements of {piece.name} it should; {_REMEDY}"
                )
    if optimizer.is_partitioned:
        torch.distributed.all_reduce(covered, group=ranks.counts_group)
    for (name, parameter), count in zip(parameters.items(), covered.tolist(), strict=True):
        numel = parameter.ds_numel if is_zero3(engine) else parameter.numel()
        if count != numel:
            raise ValueError(
                f"{count} of the {numel} elements of {name} are updated on some rank; {_REMEDY}"
            )
