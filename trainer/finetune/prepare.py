"""Prepares what a fine-tuning command works on: the encoded files, the model, and its head."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.storage.folder import Folder
from pipeline.storage.quoting import join_names
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.task import Item, Labels, OwnModel, ReadSet, Split, Task, open_task
from trainer.finetune.text import TextEncoder, file_stem
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.config import BertConfig
from trainer.model.task_heads import BertForTask, Head, build_task_model

_SIZES = ("file", "sha256", "examples", "items", "tokens", "words")
"""Facts of a file that only identify it or say how large it is; the others say what was cut."""


@dataclass(frozen=True)
class DataFile:
    """One file of examples, read and encoded.

    Attributes:
        path: Path or URL of the file.
        name: The file's name without folders and extensions. Results and predictions use it.
        examples: The examples in order, of the task's own type.
        items: The items that the examples became.
        facts: The entry of the file in results.json: its path, its sha256, numbers of examples,
            items and tokens, and counts of what was cut or left out.
    """

    path: str
    name: str
    examples: list[Any]
    items: list[Item]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """Everything that the runs of one fine-tuning command share.

    Attributes:
        settings: The settings of the command.
        task: The task that the settings name.
        opened: The model to begin with.
        config: The configuration of that model, with the dropout of the settings.
        head: The head that is trained, or that predicts.
        keeps_head: Whether the weights of the head are those of the opened model. Otherwise they
            are drawn at random.
        files: The encoded files of each split.
        notes: Lines for people to read before training begins.
    """

    settings: FinetuneSettings
    task: Task
    opened: OpenedModel
    config: BertConfig
    head: Head
    keeps_head: bool
    files: dict[Split, list[DataFile]]
    notes: list[str]

    @property
    def train_items(self) -> list[Item]:
        """Items of all training files, one file after another."""
        return [item for file in self.files["train"] for item in file.items]


def prepare_data(settings: FinetuneSettings, finetuned: OpenedModel | None = None) -> Prepared:
    """Reads the files, opens the model, chooses the head, and encodes all examples.

    Args:
        settings: The settings of the command. For `predict` they have no training files.
        finetuned: The fine-tuned model that is to predict; None opens `settings.model`, to be
            trained.

    Raises:
        ValueError: A file is malformed, the model does not fit the task or is too short for
            `seq_len`, two files to be predicted have one name, or there is nothing to train on.
        FileNotFoundError: A file or the model is not there.
    """
    task = open_task(settings)
    if finetuned and isinstance(task, OwnModel):
        advice = "predicts within finetune alone; give its files there as --test"
        raise ValueError(f"task {settings.task} {advice}")
    _refuse_equal_names(settings)
    paths: dict[Split, list[str]] = {
        "train": settings.train,
        "validation": settings.validation,
        "test": settings.test,
    }
    options = settings.filesystem_options()
    read_sets = {
        split: [task.read(path, split) for path in split_paths]
        for split, split_paths in paths.items()
    }

    opened = finetuned or open_model(settings.model, options)
    if finetuned and opened.head is None:
        advice = "fine-tune it first, and give OUTPUT/best of that"
        raise ValueError(f"{opened.where} has no head for a task; {advice}")
    train_examples = [example for rows in read_sets["train"] for example in rows.examples]
    labels = () if finetuned else task.find_labels(train_examples)
    head, keeps_head, note = choose_head(task, labels, opened, settings.replace_head)
    _check_length(settings, opened)
    config = opened.config
    dropout = settings.dropout
    if dropout is not None:
        config = dataclasses.replace(config, hidden_dropout=dropout, attention_dropout=dropout)
        head = dataclasses.replace(head, dropout=dropout)

    encoder = TextEncoder(opened.vocabulary(), opened.word_rule, settings.seq_len)
    files = {
        split: [
            _encode_file(task, path, split, rows, head, encoder, options)
            for path, rows in zip(split_paths, read_sets[split], strict=True)
        ]
        for split, split_paths in paths.items()
    }

    notes = [note]
    if not isinstance(task, OwnModel):
        notes += _describe_new(opened, head)
    notes += _describe_labelled(task, files)
    return Prepared(settings, task, opened, config, head, keeps_head, files, notes)


def _refuse_equal_names(settings: FinetuneSettings) -> None:
    """Raises ValueError if the predictions of two files would be written to one folder."""
    counts = Counter(map(file_stem, [*settings.validation, *settings.test]))
    repeated = ", ".join(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(
            f"two files to be predicted are called {repeated}; rename one, or give them to two"
            " commands"
        )


def _check_length(settings: FinetuneSettings, opened: OpenedModel) -> None:
    """Raises ValueError if the model cannot read sequences of `seq_len` tokens."""
    limit = opened.config.max_position_embeddings
    if settings.seq_len > limit:
        says = f"{opened.where} reads {limit} tokens at most; give a smaller one"
        raise ValueError(f"seq_len is {settings.seq_len}, {says}")


def _describe_labelled(task: Task, files: Mapping[Split, Sequence[DataFile]]) -> list[str]:
    """Returns lines for people that describe the files for training and for validation.

    Each line is the result of `describe_file` for one file.

    Args:
        task: The task, which counts the labels of a file.
        files: The encoded files of each split.

    Raises:
        ValueError: There are training files, but none of them has an item to train on.
    """
    train = [describe_file(file, task.count_labels(file.examples)) for file in files["train"]]
    if train and not any(file.items for file in files["train"]):
        raise ValueError(f"nothing to train on: {'; '.join(train)}")
    validation = files["validation"]
    return train + [describe_file(file, task.count_labels(file.examples)) for file in validation]


def _encode_file(
    task: Task,
    path: str,
    split: Split,
    rows: ReadSet,
    head: Head,
    encoder: TextEncoder,
    options: Mapping[str, Any] | None,
) -> DataFile:
    """Encodes the examples of a file that has been read, and gathers the file's facts.

    Args:
        task: The task, which encodes the examples.
        path: Path or URL of the file.
        split: The use of the file.
        rows: The examples, as `task.read` returned them.
        head: The head, whose labels number the classes.
        encoder: The model's tokenizer, with the length of a sequence.
        options: Options of the filesystem of a file at a URL.
    """
    items, encoding_counts = task.encode(rows.examples, head.labels, encoder, split)
    folder, name = Folder.of_file(path, options)
    facts = {
        "file": path,
        "sha256": hashlib.sha256(folder.read(name)).hexdigest(),
        "examples": len(rows.examples),
        "items": len(items),
        "tokens": sum(len(sequence.input_ids) for item in items for sequence in item.sequences),
        **rows.counts,
        **encoding_counts,
    }
    return DataFile(path, file_stem(path), rows.examples, items, facts)


def describe_file(file: DataFile, labels: Mapping[str, int]) -> str:
    """Returns a line for people: the number of examples, each label's count, and what was cut.

    Args:
        file: The file.
        labels: The number of examples of each class, or of entities of each type; empty for a
            task without classes.
    """
    parts = [f"{file.facts['examples']:,} examples"]
    if labels:
        ranked = sorted(labels.items(), key=lambda pair: (-pair[1], pair[0]))
        parts.append("labels " + join_names(f"{name} {count:,}" for name, count in ranked))
    return "; ".join([f"{file.path}: {parts[0]}", *parts[1:], *describe_losses(file)])


def describe_losses(file: DataFile) -> list[str]:
    """Returns how much of a file was cut or left out, such as "3 truncated examples"."""
    counts = [(name, value) for name, value in file.facts.items() if name not in _SIZES and value]
    return [f"{value:,} {name.replace('_', ' ')}" for name, value in counts]


def choose_head(
    task: Task, labels: Labels, opened: OpenedModel, replace_head: bool
) -> tuple[Head, bool, str]:
    """Decides whether a model keeps the head that it has, or gets a new one.

    Args:
        task: The task that the head is for.
        labels: The classes of the training files; empty if the task has none, or if the model is
            only used to predict.
        opened: The model to begin with.
        replace_head: Whether the model gets a new head even if it has one.

    Returns:
        A tuple of the head; whether it is the head of the opened model; and a line that tells
        people which head is used.

    Raises:
        ValueError: The model's head is of another kind or lacks a class, and is not to be replaced.
    """
    new = Head(task.kind, labels)
    old = opened.head
    where = opened.where
    if old is None:
        return new, False, f"{where} has no head for this task: it begins with a new one"
    if replace_head:
        return new, False, f"the head of {where} ({_describe(old)}) is replaced by a new one"
    if old.kind == new.kind and set(labels) <= set(old.labels):
        return old, True, f"{where} goes on with its head ({_describe(old)})"
    says = f"has a head for {_describe(old)}, this task needs one for {_describe(new)}"
    raise ValueError(f"{where} {says}; give another model, or finetune with --replace_head true")


def begin_model(prepared: Prepared, seed: int) -> Any:
    """Returns the untrained model of a run.

    If the task has a model of its own (`OwnModel`), it is the model that the task builds. Otherwise
    it is BERT with a head, as `start_model` returns it.

    Args:
        prepared: The task, the opened model and the head.
        seed: The seed of the weights that are not loaded but drawn at random.
    """
    if isinstance(prepared.task, OwnModel):
        return prepared.task.build_model(prepared.head, seed)
    return start_model(prepared.opened, prepared.config, prepared.head, seed, prepared.keeps_head)


def start_model(
    opened: OpenedModel, config: BertConfig, head: Head, seed: int, keeps_head: bool
) -> BertForTask:
    """Returns BERT with a head, on the CPU, with the weights of an opened model.

    Args:
        opened: The model whose weights are copied.
        config: The configuration of the new model. Only its dropout may differ from that of the
            opened model.
        head: The head of the new model.
        seed: The seed of the weights that are not copied, which are drawn at random.
        keeps_head: Whether the weights of the head are copied too.
    """
    model = build_task_model(config, head, seed)
    names = {name for name, _ in model.named_parameters() if name in opened.state}
    if not keeps_head:
        names -= {"task_head.weight", "task_head.bias"}
    model.load_state_dict({name: opened.state[name] for name in names}, strict=False)
    return model


def _describe_new(opened: OpenedModel, head: Head) -> list[str]:
    """Describes for people which weights of BERT the opened model lacks, such as the pooler's.

    Args:
        opened: The opened model.
        head: The head, which decides whether BERT has a pooler.

    Returns:
        A list of one line, or an empty list if the opened model has all weights.
    """
    with torch.device("meta"):
        names = [name for name, _ in BertForTask(opened.config, head).bert.named_parameters()]
    new = [f"bert.{name}" for name in names if f"bert.{name}" not in opened.state]
    return [f"the model lacks {', '.join(new)}, which begin as new"] if new else []


def _describe(head: Head) -> str:
    """Returns the kind of a head and its first labels, for a message."""
    if not head.labels:
        return head.kind
    names = ", ".join(head.labels[:8])
    more = ", ..." if len(head.labels) > 8 else ""
    return f"{head.kind} with {len(head.labels)} labels: {names}{more}"
