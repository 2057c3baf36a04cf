"""torch.compile around attention, with few graphs for every length.

Four functions are compiled: embeddings, what a layer does before attention and after it, and the masked-LM head. Their
token counts are symbolic and all layers share their graphs, so a run compiles four times however lengths vary.
Attention itself has a data-dependent layout, or a fused kernel; it stays as it is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import Module

from trainer.model.bert import BertForPreTraining, Embeddings, Layer
from trainer.model.heads import MaskedLmHead


def compile_model(model: BertForPreTraining) -> None:
    """Makes the model's training passes compiled ones, in place; validation, and fewer than 2 tokens, stay eager."""
    project, finish = _compiled(Layer.project), _compiled(Layer.finish)
    for layer in model.bert.layers:
        _replace(layer, "project", project)
        _replace(layer, "finish", finish)
    _replace(model.bert.embeddings, "forward", _compiled(Embeddings.forward))
    _replace(model.mlm_head, "forward", _compiled(MaskedLmHead.forward))


def _compiled(method: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(method, dynamic=True)

    def call(module: Module, *tensors: torch.Tensor) -> Any:
        # 0 and 1 are never symbolic: each would be a graph of its own.
        is_worth_it = module.training and tensors[0].shape[0] > 1
        return (compiled if is_worth_it else method)(module, *tensors)

    return call


def _replace(module: Module, name: str, method: Callable[..., Any]) -> None:
    object.__setattr__(module, name, partial(method, module))
