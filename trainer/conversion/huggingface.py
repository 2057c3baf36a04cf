"""Translates names of parameters and settings between our BERT and the classes of transformers.

The models may be pretrained or fine-tuned. Every tensor keeps its shape. Our setting `pre_norm`
means a MegatronBert in transformers, and `is_causal` is called `is_decoder` there.
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
# Tensors that a file may have although they are no parameters of ours: copies for the tied decoder,
# and a buffer of positions that old versions wrote.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_IGNORED = frozenset({"bert.embeddings.position_ids"})
# Parameters that a file may lack: those of the pooler and of heads. All others must be there.
OPTIONAL_PREFIXES = ("bert.pooler.", "mlm_head.", "nsp_head.")

_SAME = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")
_SETTINGS = {
    **{name: name for name in (*_SAME, "type_vocab_size", "layer_norm_eps", "initializer_range")},
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# Settings that our model does not have, and the only value with which it is the same model.
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
    """Returns a dict from our name of every parameter to its name in transformers.

    Args:
        config: The configuration of the model.
        head: The head of a fine-tuned model; None for a pretrained model with its two heads.
    """
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
    """Returns our parameters under the names of transformers.

    The weights of the decoder are those of the embeddings, so they are not in the result a second
    time. The safetensors files of transformers leave them out as well.

    Args:
        state: All parameters of the model, by our names.
        config: The configuration of the model.
        head: The head of a fine-tuned model; None for a pretrained model with its two heads.
    """
    names = hf_names(config, head)
    differing = sorted(set(state) ^ set(names))
    assert not differing, f"parameters differ from the model's: {differing}"
    return {names[name]: tensor for name, tensor in state.items()}


def from_hf_state(
    tensors: Mapping[str, Tensor], config: BertConfig, where: str, head: Head | None = None
) -> dict[str, Tensor]:
    """Returns the tensors of a transformers model under our names, in float32.

    The model may be a BertForPreTraining, a BertForMaskedLM, a BertModel or, with `head`, a
    fine-tuned model such as a BertForTokenClassification. Pretraining heads and a pooler that the
    file does not have are not in the result.

    Args:
        tensors: The tensors of the file, by their names in transformers.
        config: The configuration from the model's config.json.
        where: The file, for messages.
        head: The head from config.json; None for a model that is only pretrained.

    Raises:
        ValueError: The tensors are not those of a model with this configuration and head, or are
            not finite floating-point numbers.
    """
    renamed = {_modern_name(name): tensor for name, tensor in tensors.items()}
    named = {name: tensor for name, tensor in renamed.items() if name not in _IGNORED}
    check_weights(named, where)
    _check_tied(named, where)

    names = hf_names(config) | (hf_names(config, head) if head else {})
    our_names = {theirs: ours for ours, theirs in names.items()}
    _check_complete(named, our_names, config, head, where)
    state = {ours: named[theirs].float() for theirs, ours in our_names.items() if theirs in named}
    _check_shapes(state, config, head, where)
    return state


def _check_tied(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raises a ValueError if the decoder of a model has weights of its own.

    In our BERT, the decoder of the masked language model head is tied: it computes with the weights
    of the embeddings and the bias of the head. A file may have copies of them for the decoder, but
    they must be equal.

    Args:
        tensors: The tensors of the file, by their names in transformers.
        where: The file, for messages.
    """
    for copy, original in _TIED.items():
        has_both = copy in tensors and original in tensors
        if has_both and not torch.equal(tensors[copy], tensors[original]):
            says = f"{copy} differs from {original}; a BERT whose decoder is not tied is not read"
            raise ValueError(f"{where}: {says}")


def _check_complete(
    tensors: Mapping[str, Tensor],
    our_names: Mapping[str, str],
    config: BertConfig,
    head: Head | None,
    where: str,
) -> None:
    """Raises ValueError if tensors are missing, or if there are some that the model does not have.

    Args:
        tensors: The tensors of the file, by their names in transformers.
        our_names: Our name of each parameter, by its name in transformers.
        config: The configuration of the model.
        head: The head of a fine-tuned model, or None.
        where: The file, for messages.
    """
    unknown = sorted(set(tensors) - set(our_names) - set(_TIED))
    required = [
        theirs for theirs, ours in our_names.items() if not ours.startswith(OPTIONAL_PREFIXES)
    ]
    missing = [name for name in required if name not in tensors]
    if unknown or missing:
        kind = f"Bert{_CLASSES[head.kind] if head else 'ForPreTraining'}"
        says = f"not the weights of a {kind} of {config.num_layers} layers, as config.json says"
        raise ValueError(f"{where}: {says}: unknown {unknown[:5]}, missing {missing[:5]}")


def _check_shapes(
    state: Mapping[str, Tensor], config: BertConfig, head: Head | None, where: str
) -> None:
    """Raises a ValueError if a parameter has another shape than the configuration gives it.

    Args:
        state: Parameters by our names.
        config: The configuration of the model.
        head: The head of a fine-tuned model, or None.
        where: The file, for messages.
    """
    with torch.device("meta"):
        expected = BertForPreTraining(config).state_dict()
        if head:
            expected |= BertForTask(config, head).state_dict()
    for name, tensor in state.items():
        shape = tuple(expected[name].shape)
        if shape != tuple(tensor.shape):
            says = f"{name} has shape {tuple(tensor.shape)}, config.json says {shape}"
            raise ValueError(f"{where}: {says}; the two files belong to different models")


def to_hf_config(config: BertConfig, pad_id: int, head: Head | None = None) -> dict[str, Any]:
    """Returns the content of config.json for transformers.

    Args:
        config: The configuration of the model.
        pad_id: The id of [PAD].
        head: The head of a fine-tuned model; None for a BertForPreTraining.
    """
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
    labels = ("LABEL_0",) if head.kind == "regression" else head.labels
    if labels:
        settings["id2label"] = {str(index): label for index, label in enumerate(labels)}
        settings["label2id"] = {label: index for index, label in enumerate(labels)}
    return settings


def from_hf_config(settings: Mapping[str, Any], where: str) -> BertConfig:
    """Returns the configuration that a config.json of transformers describes.

    Args:
        settings: The content of config.json.
        where: The file, for messages.

    Raises:
        ValueError: The settings are of a model that is not supported, or a setting has a wrong type
            or value.
    """
    model_type = settings.get("model_type", "bert")
    if model_type not in list(_MODEL_TYPES):
        choices = ", ".join(_MODEL_TYPES)
        raise ValueError(f"{where}: model_type is {quote(model_type)}, expected one of {choices}")
    for name, expected in _FIXED.items():
        value = settings.get(name, expected)
        if value != expected:
            says = f"{name} is {quote(value)}, expected {expected!r}"
            raise ValueError(f"{where}: {says}; this model cannot be read here")
    sizes = {ours: settings[theirs] for ours, theirs in _SETTINGS.items() if theirs in settings}
    is_causal = settings.get("is_decoder")
    if is_causal is None:
        is_causal = False
    try:
        return BertConfig(**sizes, pre_norm=model_type == "megatron-bert", is_causal=is_causal)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; copy the model's own file again") from error


def head_of_hf_config(settings: Mapping[str, Any], where: str) -> Head | None:
    """Returns the head that config.json names, or None for a model that is only pretrained.

    Args:
        settings: The content of config.json, whose key "architectures" names the class of the model
            in transformers.
        where: The file, for messages.

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
    """Returns the names of the classes between which a head chooses, in the order of their ids.

    As in transformers, a model without id2label has the classes LABEL_0 and LABEL_1.

    Args:
        settings: The content of config.json.
        where: The file, for messages.

    Raises:
        ValueError: id2label is malformed.
    """
    id2label = settings.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not (isinstance(id2label, dict) and all(str(number).isdecimal() for number in id2label)):
        says = f"id2label is {quote(id2label)}, expected names by their numbers"
        raise ValueError(f"{where}: {says}")
    labels = {int(number): str(label) for number, label in id2label.items()}
    if sorted(labels) != list(range(len(labels))):
        says = f"id2label has the ids {quote(sorted(labels))}, expected 0 to {len(labels) - 1}"
        raise ValueError(f"{where}: {says}")
    return tuple(labels[number] for number in range(len(labels)))


def _modern_name(name: str) -> str:
    """Translates the name of a tensor to the one that BertForPreTraining has in transformers today.

    Files of 2018 have the names gamma and beta for the weight and the bias of a norm. Files of a
    bare BertModel have no prefix "bert." before names.
    """
    name = name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
