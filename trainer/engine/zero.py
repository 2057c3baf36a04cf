"""Starts DeepSpeed's engine around a model, and reads and refreshes weights that ZeRO partitions.

ZeRO is DeepSpeed's way of sharing out the training state: each rank updates only its own part of
the weights. ZeRO-1 partitions the optimizer's state, ZeRO-2 the gradients as well, and ZeRO-3 the
weights as well.
"""

import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module

from trainer.engine.deepspeed_config import BUCKET_ELEMENTS, bucket_elements
from trainer.engine.gradients import (
    GradientSums,
    Zero3Gradients,
    cut_buckets,
    partitioned_buckets,
    whole_buckets,
)
from trainer.engine.weights import WeightGathers
from trainer.model.bert import BertForPreTraining
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, quiet_deepspeed, together

_REMEDY = "this version of DeepSpeed partitions in another way; install that of constraints.txt"


def start_engine(
    model: Module, optimizer: ShardedOptimizer, config: dict[str, Any], ranks: Ranks
) -> Any:
    """Returns a DeepSpeed engine that trains the model; every rank has to call it.

    Its attribute `gradients` makes the backward passes and updates of a step (`Gradients`). Its
    attribute `weights` gathers the new weights (`WeightGathers`); it is None if nothing has to be
    gathered after an update, as under ZeRO-0 and 3. `current_model` returns its model.

    Args:
        model: The model, which is moved to the device of this rank.
        optimizer: The optimizer, made from the model's parameters. Afterwards it updates only what
            ZeRO lets this rank update.
        config: DeepSpeed's settings, from `deepspeed_config`.
        ranks: This process and the others of the run.

    Raises:
        ValueError: The optimizer would not update exactly the elements that it should
            (`check_partitions`).
    """
    with quiet_deepspeed():
        import deepspeed

        # DeepSpeed imports its Muon for every engine. That module decorates its kernels with
        # torch.compile, which would load torch's compiler and take a second. We do not use them.
        with mock.patch.object(torch, "compile", lambda kernel: kernel):
            importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
        zero = config["zero_optimization"]
        if zero["stage"] == 3:
            config = {**config, "zero_optimization": {**bucket_sizes(model), **zero}}

        model.to(ranks.device)
        size = zero.get("reduce_bucket_size", BUCKET_ELEMENTS)
        if zero["stage"] == 2:  # `deepspeed_config` sets it for ZeRO-1 as well
            optimizer.regroup(cut_buckets(optimizer.parameters, size))
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    engine.weights = None
    if is_zero3(engine):  # DeepSpeed puts partitions into the optimizer's groups only during a step
        optimizer.adopt(engine.optimizer.fp32_partitioned_groups_flat)
        engine.gradients = Zero3Gradients(engine)
    elif optimizer.is_partitioned:
        engine.weights = _guarded_gathers(model, optimizer, engine.optimizer)
        buckets = partitioned_buckets(engine.optimizer)
        engine.gradients = GradientSums(engine, optimizer, buckets, engine.weights)
    else:
        buckets = whole_buckets(cut_buckets(optimizer.parameters, size))
        engine.gradients = GradientSums(engine, optimizer, buckets)
    check_partitions(engine, optimizer, ranks)
    return engine


def _guarded_gathers(model: Module, optimizer: ShardedOptimizer, zero: Any) -> WeightGathers:
    """Returns what gathers a model's weights under ZeRO-1 and 2, for which its blocks then wait.

    Args:
        model: The model. If it is not BERT with its pretraining heads, it has no blocks: a forward
            pass then waits for all weights.
        optimizer: The optimizer of the model.
        zero: DeepSpeed's optimizer of ZeRO-1 and 2.
    """
    gathers = WeightGathers(optimizer, zero.bit16_groups, zero.bit16_groups_flat)
    gathers.guard(model, model.blocks() if isinstance(model, BertForPreTraining) else [])
    return gathers


def current_model(engine: Any) -> Any:
    """Returns the model of an engine, when the weights of the last update have arrived.

    After a step, weights of other ranks may still be on their way, and their memory then holds
    anything. So everything but the next step takes the model from here, never from the engine.
    """
    if engine.weights is not None:
        engine.weights.finish()
    return engine.module


def bucket_sizes(model: Module) -> dict[str, int]:
    """Returns the default sizes of the buckets that DeepSpeed reduces and gathers under ZeRO-3.

    Args:
        model: The model. A bucket is at least as large as the model's largest tensor.

    Returns:
        The keys reduce_bucket_size and allgather_bucket_size of the section zero_optimization of
        DeepSpeed's settings, with their values in elements.
    """
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    size = bucket_elements(sum(sizes), max(sizes))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}


def is_zero3(engine: Any) -> bool:
    """Returns whether the engine partitions the weights as well, which is ZeRO stage 3."""
    return int(engine.zero_optimization_stage()) == 3


def iterate_weights(engine: Any, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and the whole tensor of each weight on rank 0, and nothing on other ranks.

    Every rank has to iterate to the end, because ZeRO-3 gathers each weight from all ranks. Under
    ZeRO-3 the memory of a weight is freed when the iteration goes on, so a caller that keeps the
    weight has to copy it.
    """
    model = current_model(engine)
    if not is_zero3(engine):
        if ranks.rank == 0:
            yield from model.state_dict().items()
        return
    import deepspeed

    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if ranks.rank == 0:
                yield name, parameter.detach()


def refresh_weights(engine: Any, optimizer: ShardedOptimizer) -> None:
    """Copies the optimizer's fp32 weights into the model, after a checkpoint was loaded into them.

    Without ZeRO there is nothing to do: the optimizer updates the model's own tensors.
    """
    if is_zero3(engine):
        # DeepSpeed has no public function for this. Its own loading of checkpoints, which we do not
        # use, ends with the same calls.
        zero = engine.optimizer
        zero._partition_all_parameters()
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)
    elif optimizer.is_partitioned:
        engine.weights.start()
        engine.weights.finish()


@torch.no_grad()
def check_partitions(engine: Any, optimizer: ShardedOptimizer, ranks: Ranks) -> None:
    """Checks that each rank updates the elements of the weights that DeepSpeed has given to it.

    A fragment of the optimizer says which elements of a parameter the rank updates. Fragments are
    computed from DeepSpeed's layout of the partitions, which is not documented. If they were wrong,
    norms and clipping would be wrong as well. Every rank has to call this before the first step,
    while the optimizer's weights still equal the model's.

    Raises:
        ValueError: A fragment holds other values than the model, or the fragments of all ranks
            together miss an element or hold it twice.
    """
    parameters = {
        name: parameter
        for name, parameter in current_model(engine).named_parameters()
        if parameter.requires_grad
    }
    covered = torch.zeros(len(parameters), dtype=torch.int64)
    with together(ranks):
        for fragment in optimizer.fragments:
            covered[fragment.index] += fragment.numel
            parameter = parameters[fragment.name]
            if is_zero3(engine):  # ds_tensor is this rank's share, perhaps with padding at its end
                weights = parameter.ds_tensor
                start = 0
            else:
                weights = parameter
                start = fragment.start
            expected = weights.detach().view(-1).narrow(0, start, fragment.numel)
            values = fragment.of(optimizer.owned)
            if values.shape != expected.shape or (values.to(parameter.dtype) != expected).any():
                what = (
                    f"rank {ranks.rank} does not update the elements of {fragment.name} it should"
                )
                raise ValueError(f"{what}; {_REMEDY}")

    if optimizer.is_partitioned:
        torch.distributed.all_reduce(covered, group=ranks.counts_group)
    for (name, parameter), count in zip(parameters.items(), covered.tolist(), strict=True):
        numel = parameter.ds_numel if is_zero3(engine) else parameter.numel()
        if count != numel:
            raise ValueError(
                f"{count} of the {numel} elements of {name} are updated on some rank; {_REMEDY}"
            )
