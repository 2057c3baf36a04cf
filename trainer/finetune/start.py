"""Where a run of fine-tuning begins: the model's head, its vocabulary, and its first weights."""

import dataclasses
import json
import re

import torch

from tokenizer.vocab import Vocabulary, parse_vocab
from trainer.conversion.export import TOKENIZER, VOCAB
from trainer.finetune.task import Task
from trainer.inference.open_model import OpenedModel
from trainer.model.config import BertConfig
from trainer.model.task_heads import BertForTask, Head, HeadKind, build_task_model


def choose_head(
    task: Task, labels: tuple[str, ...], opened: OpenedModel, replace_head: bool
) -> tuple[Head, bool, str]:
    """The head that the model gets, whether it is the one it has, and what to tell people.

    Raises:
        ValueError: The model has a head of another kind or with other labels, which is not to be
            replaced.
    """
    fresh, old = Head(task.kind, labels), opened.head
    if old is None:
        return fresh, False, f"{opened.where} has no head for this task: it begins with a new one"
    if replace_head:
        return (
            fresh,
            False,
            f"the head of {opened.where} ({_describe(old)}) is replaced by a new one",
        )
    is_unnamed = all(re.fullmatch(r"LABEL_\d+", label) for label in old.labels)
    if old.kind == fresh.kind and set(labels) <= set(old.labels):
        return old, True, f"{opened.where} goes on with its head ({_describe(old)})"
    if old.kind == fresh.kind and is_unnamed and len(labels) == len(old.labels):
        named = dataclasses.replace(old, labels=labels)
        note = (
            f"{opened.where} goes on with its head, whose classes are taken as {_describe(named)}"
        )
        return named, True, note
    raise ValueError(
        f"{opened.where} has a head for {_describe(old)}, this task needs one for {_describe(fresh)}; give "
        "--replace_head true for a new one, or another model"
    )


def check_kind(opened: OpenedModel, kind: HeadKind) -> Head:
    """The head of a model that is to predict.

    Raises:
        ValueError: It has none, or one of another kind.
    """
    if opened.head is None:
        raise ValueError(
            f"{opened.where} has no head for a task; fine-tune it first, and give OUTPUT/best of that"
        )
    if opened.head.kind != kind:
        needed = _describe(Head(kind))
        raise ValueError(
            f"{opened.where} has a head for {_describe(opened.head)}, this task needs one for {needed}"
        )
    return opened.head


def read_vocabulary(opened: OpenedModel) -> Vocabulary:
    """The vocabulary of vocab.txt, or of tokenizer.json where that is all a folder has.

    Raises:
        ValueError: There is neither, it is no WordPiece, or it has other ids than the model has
            embeddings for.
    """
    if opened.vocab is not None:
        vocab = parse_vocab(opened.vocab, f"{opened.where}/{VOCAB}")
    elif opened.tokenizer_file is not None:
        vocab = _wordpieces(opened.tokenizer_file, f"{opened.where}/{TOKENIZER}")
    else:
        raise ValueError(
            f"{opened.where}: holds neither {VOCAB} nor {TOKENIZER}; put the model's vocabulary beside it"
        )
    if len(vocab) != opened.config.vocab_size:
        raise ValueError(
            f"{opened.where}: the vocabulary has {len(vocab)} tokens, the model {opened.config.vocab_size}; give the "
            "folder the vocabulary that the model was trained with"
        )
    return vocab


def start_model(
    opened: OpenedModel, config: BertConfig, head: Head, seed: int, keeps_head: bool
) -> BertForTask:
    """A model with the opened one's weights, and with new ones where that has none.

    Args:
        opened: Where the weights come from.
        config: The opened one, perhaps with other dropouts.
        head: The one to have; of the opened one's shape where that is kept.
        seed: Random seed of new weights.
        keeps_head: Whether the opened model's head is taken.
    """
    model = build_task_model(config, head, seed)
    wanted = {
        name
        for name, _ in model.named_parameters()
        if keeps_head or not name.startswith("task_head.")
    }
    state = {name: tensor for name, tensor in opened.state.items() if name in wanted}
    model.load_state_dict(state, strict=False)
    return model


def describe_new(opened: OpenedModel, head: Head) -> list[str]:
    """A word for people about parameters besides the head that begin as new, if there are any."""
    with torch.device("meta"):
        names = [name for name, _ in BertForTask(opened.config, head).bert.named_parameters()]
    new = [f"bert.{name}" for name in names if f"bert.{name}" not in opened.state]
    return [f"the model lacks {', '.join(new)}, which begin as new"] if new else []


def _wordpieces(tokenizer_file: bytes, where: str) -> Vocabulary:
    model = json.loads(tokenizer_file).get("model") or {}
    if model.get("type") != "WordPiece":
        raise ValueError(f"{where}: is a {model.get('type')} tokenizer, expected BERT's WordPiece")
    ids: dict[str, int] = model["vocab"]
    return parse_vocab(
        "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__)).encode(), where
    )


def _describe(head: Head) -> str:
    names = ", ".join(head.labels[:8]) + (", ..." if len(head.labels) > 8 else "")
    return f"{head.kind} with {len(head.labels)} labels: {names}" if head.labels else head.kind
