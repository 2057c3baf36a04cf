"""Builds the optimizer that settings name, for pretraining and fine-tuning."""

from torch.nn import Module

from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.optim.muon import Muon
from trainer.optim.settings import OptimizerSettings
from trainer.optim.sharded import ShardedOptimizer

OPTIMIZERS: dict[str, type[ShardedOptimizer]] = {"adamw": AdamW, "lamb": Lamb, "muon": Muon}


def build_optimizer(model: Module, chosen: OptimizerSettings) -> ShardedOptimizer:
    """Returns the optimizer of all parameters of a model that are not frozen."""
    return OPTIMIZERS[chosen.name](model.named_parameters(), chosen)
