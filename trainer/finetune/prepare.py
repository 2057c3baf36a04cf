"""What a fine-tuning command works on: encoded files, the model, and the head it is to have."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping
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
"""Facts of a file that say how large it is, not what became of it."""


@dataclass(frozen=True)
class DataFile:
    """One file, encoded; facts are for results.json: sizes, sha256, what was cut."""

    path: str
    name: str
    examples: list[Any]
    items: list[Item]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """Everything that the runs of a command share; notes are what people should know.

    The head may be the opened model's (`keeps_head`), the config has the dropout asked for.
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
        """Items of all training files together."""
        return [item for file in self.files["train"] for item in file.items]


def prepare_data(settings: FinetuneSettings, finetuned: OpenedModel | None = None) -> Prepared:
    """Reads the files, the model (or a finetuned one that predicts), and encodes everything."""
    task = open_task(settings)
    if finetuned and isinstance(task, OwnModel):
        advice = "predicts within finetune alone; give its files there as --test"
        raise ValueError(f"task {settings.task} {advice}")
    counts = Counter(map(file_stem, [*settings.validation, *settings.test]))
    if repeated := ", ".join(name for name, count in counts.items() if count > 1):
        raise ValueError(
            f"two files to be predicted are called {repeated}; rename one, or run twice"
        )
    paths: dict[Split, list[str]] = {"train": settings.train, "validation": settings.validation}
    paths["test"] = settings.test
    read = {split: [task.read(path, split) for path in each] for split, each in paths.items()}
    opened = finetuned or open_model(settings.model)
    if finetuned and opened.head is None:
        advice = "fine-tune it first, and give OUTPUT/best of that"
        raise ValueError(f"{opened.where} has no head for a task; {advice}")
    examples = [each for rows in read["train"] for each in rows.examples]
    labels = () if finetuned else task.find_labels(examples)
    head, keeps_head, note = choose_head(task, labels, opened, settings.replace_head)
    limit = opened.config.max_position_embeddings
    if settings.seq_len > limit:
        says = f"{opened.where} reads {limit} tokens at most; give a smaller one"
        raise ValueError(f"seq_len is {settings.seq_len}, {says}")
    notes, config = [note], opened.config
    if (dropout := settings.dropout) is not None:
        config = dataclasses.replace(config, hidden_dropout=dropout, attention_dropout=dropout)
        head = dataclasses.replace(head, dropout=dropout)
    if not isinstance(task, OwnModel):
        notes += _describe_new(opened, head)
    encoder = TextEncoder(opened.vocabulary(), opened.word_rule, settings.seq_len)
    files = {
        split: [
            _encode_file(task, path, split, rows, head, encoder)
            for path, rows in zip(each, read[split], strict=True)
        ]
        for split, each in paths.items()
    }
    shown = [*files["train"], *files["validation"]]
    described = [describe_file(file, task.count_labels(file.examples)) for file in shown]
    if settings.train and not any(file.items for file in files["train"]):
        raise ValueError(f"nothing to train on: {'; '.join(described[: len(files['train'])])}")
    notes += described
    return Prepared(settings, task, opened, config, head, keeps_head, files, notes)


def _encode_file(
    task: Task, path: str, split: Split, rows: ReadSet, head: Head, encoder: TextEncoder
) -> DataFile:
    items, cut = task.encode(rows.examples, head.labels, encoder, split)
    folder, name = Folder.of_file(path)
    facts = {
        "file": path,
        "sha256": hashlib.sha256(folder.read(name)).hexdigest(),
        "examples": len(rows.examples),
        "items": len(items),
        "tokens": sum(len(each.input_ids) for item in items for each in item.sequences),
    }
    return DataFile(path, file_stem(path), rows.examples, items, {**facts, **rows.counts, **cut})


def describe_file(file: DataFile, labels: Mapping[str, int]) -> str:
    """Returns a line of output: the number of examples, each label's count, and what was cut."""
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
    """The head that the model gets, whether it is the one it has, and what to tell people."""
    fresh, old, where = Head(task.kind, labels), opened.head, opened.where
    if old is None:
        return fresh, False, f"{where} has no head for this task: it begins with a new one"
    if replace_head:
        return fresh, False, f"the head of {where} ({_describe(old)}) is replaced by a new one"
    if old.kind == fresh.kind and set(labels) <= set(old.labels):
        return old, True, f"{where} goes on with its head ({_describe(old)})"
    says = f"has a head for {_describe(old)}, this task needs one for {_describe(fresh)}"
    raise ValueError(f"{where} {says}; give another model, or finetune with --replace_head true")


def begin_model(prepared: Prepared, seed: int) -> Any:
    """The model that a run trains."""
    if isinstance(prepared.task, OwnModel):
        return prepared.task.build_model(prepared.head, seed)
    return start_model(prepared.opened, prepared.config, prepared.head, seed, prepared.keeps_head)


def start_model(
    opened: OpenedModel, config: BertConfig, head: Head, seed: int, keeps_head: bool
) -> BertForTask:
    """A model with the opened one's weights, and ones of the seed where that has none to keep."""
    model = build_task_model(config, head, seed)
    names = {name for name, _ in model.named_parameters() if name in opened.state}
    if not keeps_head:
        names -= {"task_head.weight", "task_head.bias"}
    model.load_state_dict({name: opened.state[name] for name in names}, strict=False)
    return model


def _describe_new(opened: OpenedModel, head: Head) -> list[str]:
    """A word for people about parameters besides the head that begin as new, if there are any."""
    with torch.device("meta"):
        names = [name for name, _ in BertForTask(opened.config, head).bert.named_parameters()]
    new = [f"bert.{name}" for name in names if f"bert.{name}" not in opened.state]
    return [f"the model lacks {', '.join(new)}, which begin as new"] if new else []


def _describe(head: Head) -> str:
    names = ", ".join(head.labels[:8]) + (", ..." if len(head.labels) > 8 else "")
    return f"{head.kind} with {len(head.labels)} labels: {names}" if head.labels else head.kind
