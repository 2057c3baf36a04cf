"""DeepSpeed's engine around a model, and whole weights out of what its ZeRO has partitioned."""

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module

from trainer.engine.deepspeed_config import bucket_elements
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, quiet_deepspeed, together

_REMEDY = "this version of DeepSpeed partitions in another way; install that of constraints.txt"


def start_engine(
    model: Module, optimizer: ShardedOptimizer, config: dict[str, Any], ranks: Ranks
) -> Any:
    """A DeepSpeed engine around the model, whose optimizer updates this rank's partition of it."""
    with quiet_deepspeed():
        import deepspeed

        # Every engine asks for Muon, whose compiled kernels would load torch's compiler: a second.
        with mock.patch.object(torch, "compile", lambda kernel: kernel):
            importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
        sizes = bucket_sizes(model)
        config = {**config, "zero_optimization": {**sizes, **config["zero_optimization"]}}
        model.to(ranks.device)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    # Without ZeRO, and under ZeRO-1 in bf16, DeepSpeed takes this number and not the settings'.
    size = sizes["reduce_bucket_size"]
    engine.allreduce_gradients = partial(engine.allreduce_gradients, bucket_size=size)
    if is_zero3(engine):  # no group has it yet
        optimizer.adopt(engine.optimizer.fp32_partitioned_groups_flat)
    check_partitions(engine, optimizer, ranks)
    return engine


def bucket_sizes(model: Module) -> dict[str, int]:
    """How much DeepSpeed reduces and gathers at once by default: at least one tensor."""
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    size = bucket_elements(sum(sizes), max(sizes))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}


def is_zero3(engine: Any) -> bool:
    """Whether the weights themselves are partitioned."""
    return int(engine.zero_optimization_stage()) == 3


def iterate_weights(engine: Any, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """Names and whole weights on rank 0, each to be copied at once; all ranks go through all."""
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
                what = f"rank {ranks.rank} does not update the elements of {piece.name} it should"
                raise ValueError(f"{what}; {_REMEDY}")
    if optimizer.is_partitioned:
        torch.distributed.all_reduce(covered, group=ranks.counts_group)
    for (name, parameter), count in zip(parameters.items(), covered.tolist(), strict=True):
        numel = parameter.ds_numel if is_zero3(engine) else parameter.numel()
        if count != numel:
            raise ValueError(
                f"{count} of the {numel} elements of {name} are updated on some rank; {_REMEDY}"
            )
