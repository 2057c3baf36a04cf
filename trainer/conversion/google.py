"""google-research/bert's TensorFlow checkpoints: their names, and their weights under ours.

Dense kernels are stored transposed there. Google's code of 2018 used the exact GELU, later ones its
tanh approximation; ours, like Hugging Face's conversions of the released models, is the exact one.
"""

import re

import numpy as np
import torch
from torch import Tensor

from pipeline.storage.folder import Folder
from trainer.conversion.export import read_json
from trainer.conversion.huggingface import from_hf_config, from_hf_state, hf_names
from trainer.conversion.tensor_bundle import TensorBundle
from trainer.model.config import BertConfig

GOOGLE_CONFIG = "bert_config.json"
_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}


def load_google(folder: str, name: str) -> tuple[BertConfig, dict[str, Tensor]]:
    """Config and parameters (our names, fp32) of the checkpoint NAME.index, NAME.data-... .

    Heads that it lacks are absent. The optimizer's slots and the step are left out.
    """
    where, files = f"{folder}/{name}", Folder(folder)
    config = from_hf_config(read_json(folder, GOOGLE_CONFIG), f"{folder}/{GOOGLE_CONFIG}")
    bundle = TensorBundle(where, lambda suffix: files.read(name + suffix))
    known = {theirs: _google_name(theirs) for theirs in hf_names(config).values()}
    others = sorted(bundle.names.difference(known.values()))
    ours = [each for each in others if each.startswith(("bert/", "cls/"))]
    # An optimizer's slot is called VARIABLE/adam_m, for example.
    unknown = [each for each in ours if each.rpartition("/")[0] not in known.values()]
    if unknown:
        says = f"variables {', '.join(unknown[:5])} belong to no BERT of {config.num_layers} layers"
        raise ValueError(f"{where}: {says}")
    found = {ours: _to_torch(bundle, each) for ours, each in known.items() if each in bundle.names}
    return config, from_hf_state(found, config, where)


def _google_name(name: str) -> str:
    if name in _HEADS:
        return _HEADS[name]
    path = re.sub(r"\.layer\.(\d+)\.", r"/layer_\1/", name).replace(".", "/")
    if "LayerNorm" in path:
        return path.replace("/weight", "/gamma").replace("/bias", "/beta")
    if path.endswith("_embeddings/weight"):
        return path.removesuffix("/weight")
    return path.replace("/weight", "/kernel")


def _to_torch(bundle: TensorBundle, name: str) -> Tensor:
    values = bundle.read(name)
    return torch.from_numpy(np.array(values.T if name.endswith("/kernel") else values, order="C"))
