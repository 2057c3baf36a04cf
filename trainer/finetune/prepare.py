"""What a fine-tuning command works on: encoded files, the model, and the head it is to have."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.storage.folder import Folder
from tokenizer.vocab import Vocabulary
from trainer.finetune.settings import FinetuneSettings
from trainer.finetune.start import choose_head, describe_new, read_vocabulary, start_model
from trainer.finetune.task import Item, OwnModel, ReadSet, Split, Task
from trainer.finetune.tasks import open_task
from trainer.finetune.text import TextEncoder, file_stem
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.config import BertConfig
from trainer.model.task_heads import Head


@dataclass(frozen=True)
class DataFile:
    """One file of labelled text, encoded.

    Attributes:
        path: The path or URL as it was given.
        examples: The task's records.
        items: What the model reads.
        facts: For results.json: number of examples, items and tokens, sha256, what was cut.
    """

    path: str
    examples: list[Any]
    items: list[Item]
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The file's name without folders and extension."""
        return file_stem(self.path)


@dataclass(frozen=True)
class Prepared:
    """Everything that the runs of a command share.

    Attributes:
        task: What is learned.
        opened: Where the weights come from.
        config: The encoder's, with the dropout asked for.
        head: The one that the model gets.
        keeps_head: Whether the opened model's head goes on.
        vocab: The model's.
        train: Files to train on.
        validation: Files to measure on.
        test: Files to predict.
        notes: What people should know.
    """

    task: Task
    opened: OpenedModel
    config: BertConfig
    head: Head
    keeps_head: bool
    vocab: Vocabulary
    train: list[DataFile]
    validation: list[DataFile]
    test: list[DataFile]
    notes: list[str]

    @property
    def train_items(self) -> list[Item]:
        """Items of all training files together."""
        return [item for file in self.train for item in file.items]


def prepare_data(settings: FinetuneSettings) -> Prepared:
    """Reads the files and the model, settles the head, and encodes everything.

    Raises:
        ValueError: A malformed file, a label that training does not know, or a model that does not
            fit.
        FileNotFoundError: No such file or model.
    """
    task = open_task(settings)
    check_names([*settings.validation, *settings.test])
    paths: dict[Split, list[str]] = {
        "train": settings.train, "validation": settings.validation, "test": settings.test
    }  # fmt: skip
    read = {split: [task.read(path, split) for path in each] for split, each in paths.items()}
    opened = open_model(settings.model)
    check_positions(settings.seq_len, opened)
    labels = task.find_labels([each for rows in read["train"] for each in rows.examples])
    head, keeps_head, note = choose_head(task, labels, opened, settings.replace_head)
    notes = [note]
    config = opened.config
    if settings.dropout is not None:
        config = dataclasses.replace(
            config, hidden_dropout=settings.dropout, attention_dropout=settings.dropout
        )
        head = dataclasses.replace(head, dropout=settings.dropout)
    if not isinstance(task, OwnModel):
        notes += describe_new(opened, head)
    if config.is_causal and head.reads_pooled:
        notes.append(
            f"{opened.where} reads left to right, so its last token is pooled; transformers pools the first and will "
            "not give the same"
        )
    vocab = read_vocabulary(opened)
    encoder = TextEncoder(vocab, opened.lower_case, settings.seq_len)
    files = {
        split: [
            encode_file(task, path, split, rows, head, encoder)
            for path, rows in zip(each, read[split], strict=True)
        ]
        for split, each in paths.items()
    }
    return Prepared(
        task, opened, config, head, keeps_head, vocab,
        files["train"], files["validation"], files["test"], notes,
    )  # fmt: skip


def encode_file(
    task: Task, path: str, split: Split, rows: ReadSet, head: Head, encoder: TextEncoder
) -> DataFile:
    """A file that was read, as the model reads it."""
    encoded = task.encode(rows.examples, head.labels, encoder, split)
    tokens = sum(len(sequence.input_ids) for item in encoded.items for sequence in item.sequences)
    numbers = {"examples": len(rows.examples), "items": len(encoded.items), "tokens": tokens}
    facts = {"file": path, "sha256": _sha256(path), **numbers, **rows.counts, **encoded.counts}
    return DataFile(path, rows.examples, encoded.items, facts)


def check_positions(seq_len: int, opened: OpenedModel) -> None:
    """Refuses a sequence length that the model has no positions for."""
    if seq_len > opened.config.max_position_embeddings:
        raise ValueError(
            f"seq_len is {seq_len}, {opened.where} reads {opened.config.max_position_embeddings} "
            "tokens at most; give a smaller one"
        )


def begin_model(prepared: Prepared, seed: int) -> Any:
    """The model that a run trains."""
    if isinstance(prepared.task, OwnModel):
        return prepared.task.build_model(prepared.head, seed)
    return start_model(prepared.opened, prepared.config, prepared.head, seed, prepared.keeps_head)


def check_names(paths: Sequence[str]) -> None:
    """Metrics and predictions are found by the names of files."""
    names = Counter(map(file_stem, paths))
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        raise ValueError(
            f"two files to be predicted are called {', '.join(repeated)}; rename one, or run twice"
        )


def _sha256(path: str) -> str:
    folder, name = Folder.of_file(path)
    return hashlib.sha256(folder.read(name)).hexdigest()
