"""A DeepSpeed engine around the model: it partitions states and gradients (ZeRO), and reduces."""

import importlib
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch.nn import Module

from trainer.engine.deepspeed_config import bucket_elements
from trainer.engine.partitions import check_partitions, is_zero3
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, quiet_deepspeed


def start_engine(
    model: Module, optimizer: ShardedOptimizer, config: dict[str, Any], ranks: Ranks
) -> Any:
    """A DeepSpeed engine around the model, whose optimizer updates this rank's partition of it."""
    with quiet_deepspeed():
        import deepspeed

        _load_muon()
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


def _load_muon() -> None:
    """Imports DeepSpeed's Muon, which every engine asks for, without its kernels compiled.

    That would load torch's compiler: a second of every start for what nobody here calls.
    """
    compile_kernels = torch.compile
    torch.compile = lambda kernel: kernel  # type: ignore[assignment]
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        torch.compile = compile_kernels


def bucket_sizes(model: Module) -> dict[str, int]:
    """How much DeepSpeed reduces and gathers at once by default: at least one tensor."""
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    size = bucket_elements(sum(sizes), max(sizes))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}
