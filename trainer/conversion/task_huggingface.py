"""Names and settings of transformers' fine-tuned BERTs, to and from ours.

BertForSequenceClassification, BertForMultipleChoice, BertForTokenClassification,
BertForQuestionAnswering, and the same of MegatronBert for models with `pre_norm`. The encoder's
names are trainer.conversion.huggingface's.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trainer.conversion.huggingface import from_hf_state, hf_names, to_hf_config
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head, HeadKind

_CLASSES: dict[HeadKind, str] = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "tokens": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
_KINDS: dict[str, HeadKind] = {
    suffix: kind for kind, suffix in _CLASSES.items() if kind != "regression"
}
_PROBLEM_TYPES = {"classification": "single_label_classification", "regression": "regression"}
_DEFAULT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}


def to_hf_task_config(config: BertConfig, head: Head, pad_id: int) -> dict[str, Any]:
    """Content of config.json that opens as the class of the head's kind, with its labels."""
    settings = to_hf_config(config, pad_id)
    prefix = "MegatronBert" if config.pre_norm else "Bert"
    settings |= {
        "architectures": [prefix + _CLASSES[head.kind]],
        "classifier_dropout": head.dropout,
    }
    if head.kind in _PROBLEM_TYPES:
        settings["problem_type"] = _PROBLEM_TYPES[head.kind]
    labels = ("LABEL_0",) if head.kind == "regression" else head.labels
    if labels:
        settings["id2label"] = {str(index): label for index, label in enumerate(labels)}
        settings["label2id"] = {label: index for index, label in enumerate(labels)}
    return settings


def head_of_hf_config(settings: Mapping[str, Any], where: str) -> Head | None:
    """The head that config.json says the model has; None for a pretrained one.

    Raises:
        ValueError: A head that is not known here, such as one of several labels at once.
    """
    name = next(iter(settings.get("architectures") or []), "")
    suffix = name.removeprefix("Megatron").removeprefix("Bert")
    if suffix not in _KINDS:
        return None
    kind, dropout = _KINDS[suffix], settings.get("classifier_dropout")
    if kind in ("choice", "span"):
        return Head(kind, dropout=dropout)
    labels = {
        int(index): str(label)
        for index, label in (settings.get("id2label") or _DEFAULT_LABELS).items()
    }
    if sorted(labels) != list(range(len(labels))):
        raise ValueError(
            f"{where}: id2label has the ids {sorted(labels)}, expected 0 to {len(labels) - 1}"
        )
    problem = settings.get("problem_type")
    if kind == "classification" and (
        problem == "regression" or (problem is None and len(labels) == 1)
    ):
        return Head("regression", dropout=dropout)
    if problem == "multi_label_classification":
        raise ValueError(
            f"{where}: problem_type is {problem}; heads of one label a sequence are read here"
        )
    return Head(kind, tuple(labels[index] for index in range(len(labels))), dropout)


def to_hf_task_state(
    state: Mapping[str, Tensor], config: BertConfig, head: Head
) -> dict[str, Tensor]:
    """Parameters of BertForTask under transformers' names."""
    names = _names(config, head)
    assert set(state) == set(names), (
        f"parameters differ from the model's: {sorted(set(state) ^ set(names))}"
    )
    return {names[name]: tensor for name, tensor in state.items()}


def from_hf_task_state(
    tensors: Mapping[str, Tensor], config: BertConfig, head: Head, where: str
) -> dict[str, Tensor]:
    """Tensors of transformers under the names of BertForTask, in float32.

    Raises:
        ValueError: The head is missing or of another shape, or the rest is not the encoder's; says
            which and where.
    """
    ours = {f"task_head.{leaf}": f"{_head_name(head)}.{leaf}" for leaf in ("weight", "bias")}
    if missing := sorted(set(ours.values()) - set(tensors)):
        raise ValueError(
            f"{where}: config.json says {_CLASSES[head.kind]}, but there is no {', '.join(missing)}"
        )
    rest = {name: tensor for name, tensor in tensors.items() if name not in ours.values()}
    found = {name: tensors[theirs].float() for name, theirs in ours.items()}
    expected = (head.num_outputs, config.hidden_size)
    if tuple(found["task_head.weight"].shape) != expected:
        raise ValueError(
            f"{where}: {_head_name(head)}.weight has shape {tuple(found['task_head.weight'].shape)}, config.json says "
            f"{expected} ({len(head.labels)} labels in id2label); the two files belong to different models"
        )
    return from_hf_state(rest, config, where) | found


def _head_name(head: Head) -> str:
    return "qa_outputs" if head.kind == "span" else "classifier"


def _names(config: BertConfig, head: Head) -> dict[str, str]:
    encoder = {
        ours: theirs
        for ours, theirs in hf_names(config.num_layers, config.pre_norm).items()
        if ours.startswith("bert.")
    }
    if not head.reads_pooled:
        encoder = {
            ours: theirs for ours, theirs in encoder.items() if not ours.startswith("bert.pooler.")
        }
    return encoder | {
        f"task_head.{leaf}": f"{_head_name(head)}.{leaf}" for leaf in ("weight", "bias")
    }
