"""Names and settings of google-research/bert's TensorFlow checkpoints, to and from ours.

Dense kernels are stored transposed there; everything else keeps its shape. Google's code of 2018
used the exact GELU, later ones its tanh approximation; ours, like Hugging Face's conversions of the
released models, is the exact one.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.conversion.huggingface import from_hf_state, hf_names, to_hf_config, to_hf_state
from trainer.model.config import BertConfig

_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}

_SETTINGS = (
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
    "vocab_size",
)  # fmt: skip
# Google's program has no settings for these; they are what its model is.
_FIXED = {"pre_norm": False, "is_causal": False, "layer_norm_eps": 1e-12}


def google_names(config: BertConfig) -> dict[str, str]:
    """Hugging Face's name of every parameter -> the variable's name in Google's checkpoint."""
    return {theirs: _google_name(theirs) for theirs in hf_names(config.num_layers).values()}


def from_google_tensors(
    tensors: Mapping[str, npt.NDArray[np.generic]],
    all_names: Collection[str],
    config: BertConfig,
    where: str,
) -> dict[str, Tensor]:
    """Parameters under our names, fp32; heads that the checkpoint lacks are absent.

    Args:
        tensors: Variables of the model, by Google's names.
        all_names: Names of all tensors in the checkpoint; the optimizer's slots and the step are
            left out, others refused.
        config: Sizes of the model.
        where: The checkpoint, for messages.

    Raises:
        ValueError: A parameter is missing, unknown, or of another shape.
    """
    known = google_names(config)
    names = set(known.values())
    unknown = [
        name for name in sorted(all_names) if _is_of_model(name) and not _is_slot(name, names)
    ]
    if unknown := [name for name in unknown if name not in names]:
        raise ValueError(
            f"{where}: variables {', '.join(unknown[:5])} belong to no BERT of {config.num_layers} layers"
        )
    found = {
        hugging: torch.from_numpy(
            np.array(tensors[name].T if _is_kernel(name) else tensors[name], order="C")
        )
        for hugging, name in known.items()
        if name in tensors
    }
    return from_hf_state(found, config, where)


def to_google_config(config: BertConfig) -> dict[str, Any]:
    """Content of bert_config.json.

    Raises:
        ValueError: Google's program has no such model.
    """
    for name, expected in _FIXED.items():
        if (found := getattr(config, name)) != expected:
            raise ValueError(
                f"the model has {name} {found!r}, in Google's program it is {expected!r}; such a model can be exported "
                "for Hugging Face only"
            )
    settings = to_hf_config(config, pad_id=0)
    return {name: settings[name] for name in _SETTINGS}


def to_google_tensors(
    state: Mapping[str, Tensor], config: BertConfig
) -> dict[str, npt.NDArray[np.float32]]:
    """All parameters of BertForPreTraining under Google's names, fp32."""
    known = google_names(config)
    arrays = {
        known[name]: tensor.detach().to("cpu", torch.float32).numpy()
        for name, tensor in to_hf_state(state, config).items()
    }
    return {name: values.T if _is_kernel(name) else values for name, values in arrays.items()}


def _google_name(name: str) -> str:
    if name in _HEADS:
        return _HEADS[name]
    path = re.sub(r"\.layer\.(\d+)\.", r"/layer_\1/", name).replace(".", "/")
    if "LayerNorm" in path:
        return path.replace("/weight", "/gamma").replace("/bias", "/beta")
    return (
        path.removesuffix("/weight")
        if path.endswith("_embeddings/weight")
        else path.replace("/weight", "/kernel")
    )


def _is_kernel(name: str) -> bool:
    return name.endswith("/kernel")


def _is_of_model(name: str) -> bool:
    return name.startswith(("bert/", "cls/"))


def _is_slot(name: str, names: Collection[str]) -> bool:
    """Whether it is an optimizer's, called VARIABLE/adam_m for example."""
    return name.rpartition("/")[0] in names
