"""Names of google-research/bert's TensorFlow checkpoints, to ours.

Dense kernels are stored transposed there; everything else keeps its shape. Google's code of 2018
used the exact GELU, later ones its tanh approximation; ours, like Hugging Face's conversions of the
released models, is the exact one.
"""

import re
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.conversion.huggingface import from_hf_state, hf_names
from trainer.model.config import BertConfig

_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}


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
        name
        for name in sorted(set(all_names) - names)
        if name.startswith(("bert/", "cls/")) and not _is_slot(name, names)
    ]
    if unknown:
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


def _is_slot(name: str, names: Collection[str]) -> bool:
    """Whether it is an optimizer's, called VARIABLE/adam_m for example."""
    return name.rpartition("/")[0] in names
