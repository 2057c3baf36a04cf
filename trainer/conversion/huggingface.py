"""Names and settings of transformers' BERTs, pretrained and fine-tuned, to and from ours.

Every tensor keeps its shape. A model with `pre_norm` is transformers' MegatronBert, one that
`is_causal` has its `is_decoder`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipeline.storage.quoting import quote
from trainer.model.bert import BertForPreTraining
from trainer.model.config import BertConfig
from trainer.model.task_heads import BertForTask, Head, HeadKind
from trainer.model.weights import check_weights

_EMBEDDINGS = {
    "bert.embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type.weight": "bert.embeddings.token_type_embeddings.weight",
}
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
}
_POST_NORMS = {"attention_norm": "attention.output.LayerNorm", "output_norm": "output.LayerNorm"}
_PRE_NORMS = {"attention_norm": "attention.ln", "output_norm": "ln"}
_HEADS = {
    "mlm_head.transform": "cls.predictions.transform.dense",
    "mlm_head.norm": "cls.predictions.transform.LayerNorm",
    "mlm_head.bias": "cls.predictions.bias",
    "nsp_head": "cls.seq_relationship",
}
# What a file may hold beside the parameters: the tied decoder, and an old buffer of positions.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_IGNORED = frozenset({"bert.embeddings.position_ids"})
# Left out by models saved without one of the heads; every other parameter must be there.
OPTIONAL_PREFIXES = ("bert.pooler.", "mlm_head.", "nsp_head.")

_SAME = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")
_SETTINGS = {
    **{name: name for name in (*_SAME, "type_vocab_size", "layer_norm_eps", "initializer_range")},
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# Settings that would make it another model than ours, and what they must be if given.
_FIXED = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_CLASSES: dict[HeadKind, str] = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "tokens": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
_KINDS = {suffix: kind for kind, suffix in _CLASSES.items() if kind != "regression"}
_PROBLEM_TYPES = {"classification": "single_label_classification", "regression": "regression"}
_MODEL_TYPES = {"bert": "Bert", "megatron-bert": "MegatronBert"}


def hf_names(config: BertConfig, head: Head | None = None) -> dict[str, str]:
    """Our name of every parameter, of a pretrained model or one with a head -> Hugging Face's."""
    modules = dict(_EMBEDDINGS)
    if config.pre_norm:
        modules["bert.final_norm"] = "bert.encoder.ln"
    else:
        modules["bert.embeddings.norm"] = "bert.embeddings.LayerNorm"
    in_layer = _LAYER | (_PRE_NORMS if config.pre_norm else _POST_NORMS)
    for layer in range(config.num_layers):
        for ours, theirs in in_layer.items():
            modules[f"bert.layers.{layer}.{ours}"] = f"bert.encoder.layer.{layer}.{theirs}"
    if head is None or head.reads_pooled:
        modules["bert.pooler"] = "bert.pooler.dense"
    classifier = "qa_outputs" if head and head.kind == "span" else "classifier"
    modules |= {"task_head": classifier} if head else _HEADS
    names: dict[str, str] = {}
    for ours, theirs in modules.items():
        leaves = ("",) if ours.endswith((".weight", ".bias")) else (".weight", ".bias")
        names |= {f"{ours}{leaf}": f"{theirs}{leaf}" for leaf in leaves}
    return names


def to_hf_state(
    state: Mapping[str, Tensor], config: BertConfig, head: Head | None = None
) -> dict[str, Tensor]:
    """Our parameters under Hugging Face's names; the tied decoder is left out, as there."""
    names = hf_names(config, head)
    wrong = sorted(set(state) ^ set(names))
    assert not wrong, f"parameters differ from the model's: {wrong}"
    return {names[name]: tensor for name, tensor in state.items()}


def from_hf_state(
    tensors: Mapping[str, Tensor], config: BertConfig, where: str, head: Head | None = None
) -> dict[str, Tensor]:
    """Returns Hugging Face's tensors under our names, in float32.

    The file may be of BertForPreTraining, BertForMaskedLM or BertModel, or of the class with this
    head. Heads that the file does not have are not in the result.

    Raises:
        ValueError: The tensors are those of another model, or hold a NaN.
    """
    found = {
        modern: tensor
        for name, tensor in tensors.items()
        if (modern := _modern_name(name)) not in _IGNORED
    }
    check_weights(found, where)
    for copy, original in _TIED.items():
        if {copy, original} <= found.keys() and not torch.equal(found[copy], found[original]):
            says = f"{copy} differs from {original}; a BERT whose decoder is not tied is not read"
            raise ValueError(f"{where}: {says}")
    names = hf_names(config) | (hf_names(config, head) if head else {})
    ours = {theirs: name for name, theirs in names.items()}
    unknown = sorted(set(found) - set(ours) - set(_TIED))
    needed = [theirs for theirs, name in ours.items() if not name.startswith(OPTIONAL_PREFIXES)]
    missing = [name for name in needed if name not in found]
    if unknown or missing:
        kind = f"Bert{_CLASSES[head.kind] if head else 'ForPreTraining'}"
        says = f"not the weights of a {kind} of {config.num_layers} layers, as config.json says"
        raise ValueError(f"{where}: {says}: unknown {unknown[:5]}, missing {missing[:5]}")
    state = {name: found[theirs].float() for theirs, name in ours.items() if theirs in found}
    with torch.device("meta"):
        expected = BertForPreTraining(config).state_dict()
        expected |= BertForTask(config, head).state_dict() if head else {}
    for name, tensor in state.items():
        if (shape := tuple(expected[name].shape)) != tuple(tensor.shape):
            says = f"{name} has shape {tuple(tensor.shape)}, config.json says {shape}"
            raise ValueError(f"{where}: {says}; the two files belong to different models")
    return state


def to_hf_config(config: BertConfig, pad_id: int, head: Head | None = None) -> dict[str, Any]:
    """Content of config.json, for transformers' BERT to pretrain or the head's class."""
    model_type = "megatron-bert" if config.pre_norm else "bert"
    suffix = "ForPreTraining" if head is None else _CLASSES[head.kind]
    settings = {
        "architectures": [_MODEL_TYPES[model_type] + suffix],
        "model_type": model_type,
        **_FIXED,
        "is_decoder": config.is_causal,
        **{theirs: getattr(config, ours) for ours, theirs in _SETTINGS.items()},
        "dtype": "float32",
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
    }
    if head is None:
        return settings
    settings["classifier_dropout"] = head.dropout
    if head.kind in _PROBLEM_TYPES:
        settings["problem_type"] = _PROBLEM_TYPES[head.kind]
    if labels := ("LABEL_0",) if head.kind == "regression" else head.labels:
        settings["id2label"] = {str(index): label for index, label in enumerate(labels)}
        settings["label2id"] = {label: index for index, label in enumerate(labels)}
    return settings


def from_hf_config(settings: Mapping[str, Any], where: str) -> BertConfig:
    """Returns our config for the settings of a config.json.

    Raises:
        ValueError: The settings are of a model that is not supported, or a setting has a wrong type
            or value.
    """
    model_type = settings.get("model_type", "bert")
    if model_type not in list(_MODEL_TYPES):
        choices = ", ".join(_MODEL_TYPES)
        raise ValueError(f"{where}: model_type is {quote(model_type)}, expected one of {choices}")
    for name, expected in _FIXED.items():
        if (found := settings.get(name, expected)) != expected:
            says = f"{name} is {quote(found)}, expected {expected!r}"
            raise ValueError(f"{where}: {says}; this model cannot be read here")
    sizes = {ours: settings[theirs] for ours, theirs in _SETTINGS.items() if theirs in settings}
    given = settings.get("is_decoder")
    is_causal = False if given is None else given
    try:
        return BertConfig(**sizes, pre_norm=model_type == "megatron-bert", is_causal=is_causal)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; copy the model's own file again") from error


def head_of_hf_config(settings: Mapping[str, Any], where: str) -> Head | None:
    """Returns the head that config.json names, or None for a model that is only pretrained.

    Raises:
        ValueError: Heads of this kind are not supported, or the head's settings are malformed.
    """
    architectures = settings.get("architectures") or []
    if not (isinstance(architectures, list) and all(isinstance(n, str) for n in architectures)):
        says = f"architectures is {quote(architectures)}, expected a list of names"
        raise ValueError(f"{where}: {says}")
    suffix = next(iter(architectures), "").removeprefix("Megatron").removeprefix("Bert")
    if suffix not in _KINDS:
        return None
    kind = _KINDS[suffix]
    dropout = settings.get("classifier_dropout")
    is_number = isinstance(dropout, (int, float)) and not isinstance(dropout, bool)
    if dropout is not None and not (is_number and 0 <= dropout < 1):
        says = f"classifier_dropout is {quote(dropout)}, expected null or a share below 1"
        raise ValueError(f"{where}: {says}")
    if kind in ("choice", "span"):
        return Head(kind, dropout=dropout)
    labels = _labels_of(settings, where)
    problem = settings.get("problem_type")
    is_regression = problem == "regression" or (problem is None and len(labels) == 1)
    if kind == "classification" and is_regression:
        return Head("regression", dropout=dropout)
    if problem == "multi_label_classification":
        says = f"problem_type is {problem}; heads of one label a sequence are read here"
        raise ValueError(f"{where}: {says}")
    return Head(kind, labels, dropout)


def _labels_of(settings: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Returns the classes of a head in the order of their ids. Without id2label there are two.

    Raises:
        ValueError: id2label is malformed.
    """
    given = settings.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not (isinstance(given, dict) and all(str(number).isdecimal() for number in given)):
        says = f"id2label is {quote(given)}, expected names by their numbers"
        raise ValueError(f"{where}: {says}")
    labels = {int(number): str(label) for number, label in given.items()}
    if sorted(labels) != list(range(len(labels))):
        says = f"id2label has the ids {quote(sorted(labels))}, expected 0 to {len(labels) - 1}"
        raise ValueError(f"{where}: {says}")
    return tuple(labels[number] for number in range(len(labels)))


def _modern_name(name: str) -> str:
    """Today's name of a tensor: files of 2018 say gamma and beta, BertModel lacks the prefix."""
    name = name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
