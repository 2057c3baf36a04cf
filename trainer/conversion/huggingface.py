"""Names and settings of Hugging Face's BertForPreTraining, to and from ours.

Pure: files are export.py's. Every tensor keeps its shape, so export and import are renames. A model
with `pre_norm` is transformers' MegatronBertForPreTraining, one that `is_causal` has its
`is_decoder`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig

_EMBEDDINGS = {
    "bert.embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type.weight": "bert.embeddings.token_type_embeddings.weight",
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_PRE_NORM_LAYER = {"attention_norm": "attention.ln", "output_norm": "ln"}
_PRE_NORM = {"bert.final_norm": "bert.encoder.ln"}
_HEADS = {
    "bert.pooler": "bert.pooler.dense",
    "mlm_head.transform": "cls.predictions.transform.dense",
    "mlm_head.norm": "cls.predictions.transform.LayerNorm",
    "mlm_head.bias": "cls.predictions.bias",
    "nsp_head": "cls.seq_relationship",
}
# What a file may hold beside the parameters: the tied decoder once more, and an old buffer of
# positions.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_IGNORED = frozenset({"bert.embeddings.position_ids"})
# Left out by models saved without one of the heads; every other parameter must be there.
OPTIONAL_PREFIXES = ("bert.pooler.", "mlm_head.", "nsp_head.")

_SETTINGS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Settings that would make it another model than ours, and what they must be if given.
_FIXED = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_MODEL_TYPES = {"bert": "BertForPreTraining", "megatron-bert": "MegatronBertForPreTraining"}
# What a config.json leaves out has BERT-BASE's value, in transformers as in ours, but for the other
# model type.
_MEGATRON_DEFAULTS = {
    "vocab_size": 29_056,
    "hidden_size": 1_024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4_096,
}


def hf_names(num_layers: int, pre_norm: bool = False) -> dict[str, str]:
    """Our name of every parameter -> Hugging Face's."""
    modules, in_layer = dict(_EMBEDDINGS), dict(_LAYER)
    if pre_norm:
        del modules["bert.embeddings.norm"]
        modules |= _PRE_NORM
        in_layer |= _PRE_NORM_LAYER
    for layer in range(num_layers):
        modules |= {
            f"bert.layers.{layer}.{ours}": f"bert.encoder.layer.{layer}.{hf}"
            for ours, hf in in_layer.items()
        }
    names: dict[str, str] = {}
    for ours, theirs in (modules | _HEADS).items():
        leaves = ("",) if ours.endswith((".weight", ".bias")) else (".weight", ".bias")
        names |= {f"{ours}{leaf}": f"{theirs}{leaf}" for leaf in leaves}
    return names


def to_hf_state(state: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Our parameters under Hugging Face's names; the tied decoder is left out, as there."""
    names = hf_names(config.num_layers, config.pre_norm)
    assert set(state) == set(names), (
        f"parameters differ from BERT's: {sorted(set(state) ^ set(names))}"
    )
    return {names[name]: tensor for name, tensor in state.items()}


def from_hf_state(
    tensors: Mapping[str, Tensor], config: BertConfig, where: str
) -> dict[str, Tensor]:
    """Hugging Face's tensors under our names, in float32; heads that the file lacks are absent.

    Reads files of BertForPreTraining, BertForMaskedLM and BertModel, old (gamma, beta) and new.

    Raises:
        ValueError: A parameter of the encoder is missing, one is unknown or of another shape, or
            the decoder is not tied; says which and where.
    """
    found = {_modern_name(name): tensor for name, tensor in tensors.items()}
    _check_tied(found, where)
    ours = {theirs: name for name, theirs in hf_names(config.num_layers, config.pre_norm).items()}
    unknown = sorted(set(found) - set(ours) - set(_TIED) - _IGNORED)
    missing = [
        theirs
        for theirs, name in ours.items()
        if theirs not in found and not name.startswith(OPTIONAL_PREFIXES)
    ]
    if unknown or missing:
        raise ValueError(
            f"{where}: not the weights of a pretrained BERT of {config.num_layers} layers: "
            f"unknown {unknown[:5]}, missing {missing[:5]}; save it with transformers' BertForPreTraining"
        )
    state = {
        name: found[theirs].to(torch.float32) for theirs, name in ours.items() if theirs in found
    }
    _check_shapes(state, config, where)
    return state


def _check_shapes(state: Mapping[str, Tensor], config: BertConfig, where: str) -> None:
    with torch.device("meta"):
        expected = BertForPreTraining(config).state_dict()
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, config.json says {tuple(expected[name].shape)}; "
                "the two files belong to different models"
            )


def to_hf_config(config: BertConfig, pad_id: int) -> dict[str, Any]:
    """Content of config.json: transformers opens it as a BERT or MegatronBERT to pretrain."""
    model_type = "megatron-bert" if config.pre_norm else "bert"
    return {
        "architectures": [_MODEL_TYPES[model_type]],
        "model_type": model_type,
        **_FIXED,
        "is_decoder": config.is_causal,
        **{theirs: getattr(config, ours) for ours, theirs in _SETTINGS.items()},
        "dtype": "float32",
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
    }


def from_hf_config(settings: Mapping[str, Any], where: str) -> BertConfig:
    """Our config from config.json.

    Raises:
        ValueError: It describes a model that ours is not, such as another activation.
    """
    model_type = settings.get("model_type", "bert")
    if model_type not in _MODEL_TYPES:
        raise ValueError(
            f"{where}: model_type is {model_type!r}, expected one of {', '.join(_MODEL_TYPES)}"
        )
    for name, expected in _FIXED.items():
        found = settings.get(name, expected)
        if found != expected:
            raise ValueError(
                f"{where}: {name} is {found!r}, expected {expected!r}; this model cannot be read here"
            )
    given = {**_MEGATRON_DEFAULTS, **settings} if model_type == "megatron-bert" else settings
    sizes = {ours: given[theirs] for ours, theirs in _SETTINGS.items() if theirs in given}
    is_causal = bool(settings.get("is_decoder", False))
    return BertConfig(**sizes, pre_norm=model_type == "megatron-bert", is_causal=is_causal)


def _modern_name(name: str) -> str:
    """Today's name of a tensor: files of 2018 say gamma and beta, BertModel lacks the prefix."""
    name = name.replace(".LayerNorm.gamma", ".LayerNorm.weight").replace(
        ".LayerNorm.beta", ".LayerNorm.bias"
    )
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _check_tied(found: Mapping[str, Tensor], where: str) -> None:
    for copy, original in _TIED.items():
        if copy in found and original in found and not torch.equal(found[copy], found[original]):
            raise ValueError(
                f"{where}: {copy} differs from {original}; a BERT whose decoder is not tied is not read"
            )
