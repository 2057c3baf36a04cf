"""Defines the protocol that every fine-tuning task follows, and the records it passes around.

    files --read--> examples --encode--> items --[BertForTask]--> outputs --decode--> predictions
    --score--> metrics

A task reads its files, turns examples into items that a model can batch, and turns the model's
outputs into predictions, metrics and files. Losses belong to the head (trainer.model.task_heads).
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
"""The use of a file. The examples of a "test" file need no labels."""

Output = NDArray[np.float32]
"""The logits of one item.

Their shape depends on the kind of head: [labels] for classification, [1] for regression, [choices]
for a multiple choice, [tokens, labels] for tags of tokens, and [tokens, 2] for spans, whose columns
are logits of the first and of the last token of the span.
"""

Outputs = Sequence[Output]
Labels = tuple[str, ...]
"""The names of the classes. A class's number is its position in this tuple."""
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Item:
    """The smallest unit that a model is trained on or predicts: it is never split over batches.

    Attributes:
        example: The index of the example that the item was made from. A long example becomes
            several items, one for each of its windows.
        sequences: The token sequences: one for each choice of a multiple choice, otherwise one.
        labels: What the model should predict. Its form depends on the kind of head: int64 [1], the
            number of the class or of the right choice; float32 [1], the number to be predicted;
            int64 [tokens], a class for each token or IGNORED; int64 [2], the first and the last
            token of the right span, counted from the start of the sequence. Items of a test file
            have int64 [0].
    """

    example: int
    sequences: tuple[TokenSequence, ...]
    labels: NDArray[Any]


class ReadSet(NamedTuple):
    """The examples of one file.

    Attributes:
        examples: The examples in the order of the file. Their type is the task's own.
        counts: How much of the file was left out, by reason, such as {"skipped_rows": 3}.
    """

    examples: list[Any]
    counts: dict[str, int]


class EncodedSet(NamedTuple):
    """The items of one file.

    Attributes:
        items: The items in the order of the examples that they were made from.
        counts: What encoding did to the text, such as {"truncated_examples": 3}.
    """

    items: list[Item]
    counts: dict[str, int]


@runtime_checkable
class OwnModel(Protocol):
    """Further methods of a task that trains another model than BERT with a head.

    A task that has these methods counts as an `OwnModel`. Its model is made by `build_model`, and
    only `finetune` can predict with it, because `predict` opens BERT models alone.
    """

    def build_model(self, head: Any, seed: int) -> Any:
        """Returns an untrained model with random weights drawn from the seed.

        The model must take the same inputs and return the same outputs as
        `trainer.model.task_heads.BertForTask`.
        """

    def model_files(
        self, state: Mapping[str, Any], head: Any, provenance: Mapping[str, Any]
    ) -> dict[str, bytes]:
        """Returns the contents of the files for OUTPUT/best by file name.

        The last file is config.json, and it contains the provenance.
        """


class Task(Protocol):
    """The steps of a fine-tuning task.

    All methods that look at user data raise ValueError for malformed input. Its message names the
    file and the line.

    Attributes:
        kind: The kind of head that the task needs, one of `trainer.model.task_heads.HeadKind`.
        main_metric: The metric, a key of the result of `score`, by which runs are compared. A
            higher value is better.
    """

    kind: Any
    main_metric: str

    def read(self, path: str, split: Split) -> ReadSet:
        """Reads the examples of one file. A file without examples is an error."""

    def count_labels(self, examples: Sequence[Any]) -> Mapping[str, int]:
        """Counts the examples of each class, or the entities of each type, to be shown to people.

        The result is empty for a task without classes.
        """

    def find_labels(self, examples: Sequence[Any]) -> Labels:
        """Returns the classes that a model is trained on, given all training examples.

        The result is empty for a task without classes.
        """

    def encode(
        self, examples: Sequence[Any], labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Encodes the examples of one file as items.

        Args:
            examples: The examples, from `read`.
            labels: The classes that the model is trained on, which number the labels of items.
            encoder: The model's tokenizer, with the length of a sequence.
            split: The use of the file. Items of a "test" file have no labels.
        """

    def decode(
        self, examples: Sequence[Any], items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Any]:
        """Returns one prediction for each example.

        Args:
            examples: The examples of a file.
            items: The items that `encode` made from these examples.
            outputs: The model's output for each item.
            labels: The classes that the model was trained on.
        """

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Returns metrics by name.

        `main_metric` is one of them. Values that are tuned on these examples, such as a threshold,
        are among them too.
        """

    def prediction_files(
        self, path: str, examples: Sequence[Any], predictions: Sequence[Any], tuned: Metrics
    ) -> dict[str, str]:
        """Returns the contents of the files of predictions by file name.

        Args:
            path: The file that the examples were read from.
            examples: The examples.
            predictions: One prediction for each example, from `decode`.
            tuned: The result of `score` for the first validation file. It contains the tuned
                values that predictions depend on.
        """


def open_task(settings: FinetuneSettings) -> Task:
    """Creates the task that the settings name.

    Raises:
        ValueError: There is no task of this name; the message lists the tasks.
    """
    check_task(settings.task)
    module, _, name = TASKS[settings.task].partition(":")
    return cast("Task", getattr(importlib.import_module(module), name)(settings))
