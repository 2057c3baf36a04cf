"""What a task is: how files become items, and outputs predictions, metrics and files.

    files --read--> examples --encode--> items --[BertForTask]--> outputs --decode--> predictions
    --score--> metrics

A task is a class that follows `Task`; it is
found by its name in trainer.finetune.tasks. Losses are the head's (trainer.model.task_heads).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tokenizer.vocab import IdArray
from trainer.finetune.text import TextEncoder

Split = Literal["train", "validation", "test"]
"""Examples of "test" need no labels."""

Outputs = NDArray[np.float32]
"""Logits of an item: [labels], [1] (a number), [choices], [tokens, labels], [tokens, 2] (spans)."""


@dataclass(frozen=True)
class TokenSequence:
    """One sequence that the model reads.

    Attributes:
        input_ids: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], without padding.
        segment_a_length: Tokens of type 0, [CLS] and the first [SEP] among them.
    """

    input_ids: IdArray
    segment_a_length: int


@dataclass(frozen=True)
class Item:
    """What one loss is made of and one row of a batch: a sequence, or the choices of one question.

    Attributes:
        example: Index of the example; several items may be of one example (windows, pieces of a
            long sentence).
        sequences: A single sequence, or one for each choice.
        labels: [1] int64 class or choice; [1] float32; [tokens] int64 classes with IGNORED; [2]
            int64 first and last token of a span, counted in the sequence. Of a test file's item:
            empty.
    """

    example: int
    sequences: tuple[TokenSequence, ...]
    labels: NDArray[Any]


@dataclass(frozen=True)
class ReadSet:
    """A file's examples, in order.

    Attributes:
        examples: Records of the task's own, at least one.
        counts: What was left out, such as {"skipped_rows": 3}: goes to results.json.
    """

    examples: list[Any]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedSet:
    """Items of a file's examples, in order.

    Attributes:
        items: What is trained on or predicted.
        counts: What was done to the text, such as {"truncated_examples": 3}: goes to results.json.
    """

    items: list[Item]
    counts: dict[str, int] = field(default_factory=dict)


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
    """The five steps of a task. Examples and predictions are records of the task's own.

    Attributes:
        kind: A trainer.model.task_heads.HeadKind.
        main_metric: Key of `score` that chooses the best run; higher is better.
    """

    kind: Any
    main_metric: str

    def read(self, path: str, split: Split) -> ReadSet:
        """Examples of one file.

        Raises:
            ValueError: Malformed; says file and line.
        """

    def find_labels(self, examples: Sequence[Any]) -> tuple[str, ...]:
        """Names of the classes in order, from the training examples; empty without classes."""

    def encode(
        self, examples: Sequence[Any], labels: tuple[str, ...], encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Items of the examples, called once for each file.

        Raises:
            ValueError: A label that is not among `labels`; says file and line.
        """

    def decode(
        self,
        examples: Sequence[Any],
        items: Sequence[Item],
        outputs: Sequence[Outputs],
        labels: tuple[str, ...],
    ) -> list[Any]:
        """One prediction for each example, from one output for each item."""

    def score(self, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Metrics by name, `main_metric` among them, and what is tuned on these examples."""

    def prediction_files(
        self,
        path: str,
        examples: Sequence[Any],
        predictions: Sequence[Any],
        metrics: Mapping[str, float],
    ) -> dict[str, str]:
        """Contents by file name of what is written for the predictions of a file.

        Args:
            path: The file that the examples come from.
            examples: The examples of the file.
            predictions: What decode() made of them.
            metrics: Metrics of the first validation file, with what was tuned there.
        """
