"""The optimizer that settings name, to pretrain and to fine-tune."""

from torch.nn import Module

from trainer.optim.adamw import AdamW
from trainer.optim.lamb import Lamb
from trainer.optim.settings import OptimizerSettings
from trainer.optim.sharded import ShardedOptimizer

OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}


def build_optimizer(model: Module, chosen: OptimizerSettings) -> ShardedOptimizer:
    """The optimizer that the settings name, for all parameters of a model."""
    return OPTIMIZERS[chosen.name](
        model.named_parameters(),
        betas=(chosen.beta1, chosen.beta2),
        eps=chosen.eps,
        weight_decay=chosen.weight_decay,
        bias_correction=chosen.bias_correction,
        max_grad_norm=chosen.max_grad_norm,
    )
