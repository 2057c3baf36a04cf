"""A DeepSpeed engine around the model: it partitions states and gradients (ZeRO) and reduces gradients."""

import importlib
from functools import partial
from typing import Any

import torch
import torch.distributed
from torch.nn import Module

from trainer.engine.deepspeed_config import bucket_elements
from trainer.engine.partitions import adopt_partitions, check_partitions
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, quiet_deepspeed


def start_engine(
    model: Module, optimizer: ShardedOptimizer, config: dict[str, Any], ranks: Ranks
) -> Any:
    """A DeepSpeed engine around the model.

    The optimizer then updates this rank's partition of the weights.

    Raises:
        ValueError: DeepSpeed's partitions are not what the optimizer takes them for.
    """
    with quiet_deepspeed():
        import deepspeed

        _load_muon()
        sizes = bucket_sizes(model)
        sized = {**config, "zero_optimization": {**sizes, **config["zero_optimization"]}}
        engine, *_ = deepspeed.initialize(
            model=model.to(ranks.device), optimizer=optimizer, config=sized
        )
    # Without ZeRO, and under ZeRO-1 in bf16, DeepSpeed takes this number and not the settings'.
    engine.allreduce_gradients = partial(
        engine.allreduce_gradients, bucket_size=sizes["reduce_bucket_size"]
    )
    adopt_partitions(engine, optimizer)
    check_partitions(engine, optimizer, ranks)
    return engine


def _load_muon() -> None:
    """Imports DeepSpeed's Muon, which every engine asks for, without its kernels compiled.

    They would be by an import, which loads torch's compiler: a second of every start for what
    nobody here calls.
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
