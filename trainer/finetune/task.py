"""What a task is: how files become items, and outputs predictions, metrics and files.

    files --read--> examples --encode--> items --[BertForTask]--> outputs --decode--> predictions
    --score--> metrics

Losses are the head's (trainer.model.task_heads).
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trainer.finetune.settings import TASKS, FinetuneSettings, check_task
from trainer.finetune.text import TextEncoder, TokenSequence

Split = Literal["train", "validation", "test"]
"""Examples of "test" need no labels."""

Output = NDArray[np.float32]
"""Logits of an item: [labels], [1] (a number), [choices], [tokens, labels], [tokens, 2] (spans)."""

Outputs = Sequence[Output]
Labels = tuple[str, ...]
"""Names of the classes, in order."""
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Item:
    """What one loss is made of and one row of a batch.

    Attributes:
        example: Index of the example; several items may be windows of one.
        sequences: A single sequence, or one for each choice.
        labels: [1] int64 class or choice; [1] float32; [tokens] int64 classes with IGNORED; [2]
            int64 first and last token of a span, counted in the sequence. Of a test file: empty.
    """

    example: int
    sequences: tuple[TokenSequence, ...]
    labels: NDArray[Any]


class ReadSet(NamedTuple):
    """A file's examples in order, records of the task's own, and counts of what was left out."""

    examples: list[Any]
    counts: dict[str, int]


class EncodedSet(NamedTuple):
    """Items of a file's examples in order, and counts of what was done to the text."""

    items: list[Item]
    counts: dict[str, int]


@runtime_checkable
class OwnModel(Protocol):
    """What a task has besides where the trained model is not BERT with a head."""

    def build_model(self, head: Any, seed: int) -> Any:
        """A new model, called as trainer.model.task_heads.BertForTask is."""

    def model_files(
        self, state: Mapping[str, Any], head: Any, provenance: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """What OUTPUT/best holds, by file name; config.json, with the provenance, is last."""


class Task(Protocol):
    """The steps of a task. Malformed input raises ValueError with file and line.

    Attributes:
        kind: A trainer.model.task_heads.HeadKind.
        main_metric: The key of `score` that chooses the best run; higher is better.
    """

    kind: Any
    main_metric: str

    def read(self, path: str, split: Split) -> ReadSet:
        """Examples of one file, at least one."""

    def count_labels(self, examples: Sequence[Any]) -> Mapping[str, int]:
        """Counts the classes or types of entities, to be shown before training."""

    def find_labels(self, examples: Sequence[Any]) -> Labels:
        """The classes, from the training examples; empty without classes."""

    def encode(
        self, examples: Sequence[Any], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Items of the examples, called once for each file."""

    def decode(
        self, examples: Sequence[Any], items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Any]:
        """One prediction for each example, from one output for each item."""

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Metrics by name, `main_metric` among them, and what is tuned on these examples."""

    def prediction_files(
        self, path: str, examples: Sequence[Any], predictions: Sequence[Any], tuned: Metrics
    ) -> dict[str, str]:
        """Contents by name; `tuned` is score() of the first validation file."""


def open_task(settings: FinetuneSettings) -> Task:
    """The task that the settings name; a ValueError names those that there are."""
    check_task(settings.task)
    module, _, name = TASKS[settings.task].partition(":")
    return cast("Task", getattr(importlib.import_module(module), name)(settings))
