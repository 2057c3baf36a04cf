"""Implements the tasks that classify or rate a text or a pair, or choose one of several pairs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.storage.quoting import join_names, quote
from trainer.finetune.measures import METRICS
from trainer.finetune.task import EncodedSet, Item, Labels, Metrics, Outputs, ReadSet, Split
from trainer.finetune.text import TextEncoder

Prediction = str | float
"""A class, the number of a choice written as text, or the number that a regression predicts."""
Predictions = Sequence[Prediction]


class PairExample(NamedTuple):
    """One example: a text, a pair of texts, or a text with several choices that may follow it.

    Attributes:
        place: File and line, for messages.
        id: The value that identifies the example in a table of predictions.
        text: The text, the first text of a pair, or the text that the choices follow.
        seconds: (None,) for a single text, the second text of a pair as a tuple of one, or all
            choices of a multiple choice.
        label: The class, the number of a regression, or the number of the right choice, as it is
            written in the file; None in a test file.
    """

    place: str
    id: str
    text: str
    seconds: tuple[str | None, ...]
    label: str | None


Examples = Sequence[PairExample]


@dataclass(frozen=True)
class PairTask:
    """A `Task` over texts or pairs. Benchmarks differ only in the fields of this class.

    In a multiple choice, the text is encoded once with each choice. The model gives one logit per
    sequence, and the softmax runs over the choices of an example (BERT paper, section 4.4).

    Attributes:
        kind: The kind of head: "classification", "regression" or "choice".
        read: A function that takes the path and the split of a file, and returns its examples.
        metrics: Names in `METRICS`. The first metric chooses the best run.
        write: A function that takes the path of a file, its examples and their predictions, and
            returns the file name and the content of a table of predictions.
        labels: The classes, if the benchmark fixes them, or the numbers of the choices. If it is
            empty, a classification has the classes of its training files.
    """

    kind: str
    read: Callable[[str, Split], ReadSet]
    metrics: tuple[str, ...]
    write: Callable[[str, Examples, Predictions], tuple[str, str]]
    labels: Labels = ()

    @property
    def main_metric(self) -> str:
        """The name of the metric that chooses the best run."""
        return self.metrics[0]

    def count_labels(self, examples: Examples) -> Counter[str]:
        """Counts the examples by class, or by the number of the right choice.

        The result is empty for a regression.
        """
        if self.kind == "regression":
            return Counter()
        return Counter(str(example.label) for example in examples)

    def find_labels(self, examples: Examples) -> Labels:
        """Returns the classes of a classification.

        They are the classes that the benchmark fixes. If it fixes none, they are the labels of the
        examples, sorted. The result is empty for a regression or a multiple choice.

        Raises:
            ValueError: A label is empty, has white space around it, or has a tab or a line end. Or
                all examples have the same label.
        """
        if self.kind != "classification":
            return ()
        for example in examples:
            _check_class(example)
        labels = self.labels or tuple(sorted({str(example.label) for example in examples}))
        if len(labels) < 2:
            says = f"every training example has the label {quote(labels[0])}; at least 2 differ"
            raise ValueError(f"{examples[0].place}: {says}")
        return labels

    def encode(
        self, examples: Examples, labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """Encodes every example as one item, and counts the texts that were cut or are empty.

        If a pair is too long, tokens are taken from the end of its longer text
        (`TextEncoder.truncate`).

        Raises:
            ValueError: The label of an example is not one of `labels`, or in a regression it is not
                a number.
        """
        firsts = encoder.encode_texts([example.text for example in examples])
        texts = [text or "" for example in examples for text in example.seconds]
        seconds = iter(encoder.encode_texts(texts))
        items = []
        counts = Counter(truncated_examples=0, truncated_tokens=0, examples_with_empty_text=0)
        for index, (example, a) in enumerate(zip(examples, firsts, strict=True)):
            pairs = [(text, next(seconds)) for text in example.seconds]
            fitting = [encoder.truncate(a, None if text is None else b) for text, b in pairs]
            sequences = tuple(encoder.join(a, b) for a, b, _ in fitting)
            items.append(Item(index, sequences, self._encode_label(example, labels, split)))

            num_removed = sum(count for *_, count in fitting)
            counts.update(truncated_examples=num_removed > 0, truncated_tokens=num_removed)
            is_empty = not len(a) or any(text is not None and not len(b) for text, b in pairs)
            counts.update(examples_with_empty_text=is_empty)
        return EncodedSet(items, dict(counts))

    def decode(
        self, examples: Examples, items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Prediction]:
        """Returns one prediction for each example.

        It is the most probable class, the number of the most probable choice, written as text, or
        in a regression the number that the model computes.
        """
        if self.kind == "regression":
            return [float(output[0]) for output in outputs]
        return [(labels or self.labels)[int(output.argmax())] for output in outputs]

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        """Returns the task's metrics by name."""
        convert = float if self.kind == "regression" else str
        expected = [convert(str(example.label)) for example in examples]
        return {name: METRICS[name](predictions, expected) for name in self.metrics}

    def prediction_files(
        self, path: str, examples: Examples, predictions: Predictions, tuned: Metrics
    ) -> dict[str, str]:
        """Returns the content of one table of predictions, by its file name.

        The table does not depend on `tuned`.
        """
        name, content = self.write(path, examples, predictions)
        return {name: content}

    def _encode_label(self, example: PairExample, labels: Labels, split: Split) -> NDArray[Any]:
        """Returns the label of an example in the form of `Item.labels`.

        Raises:
            ValueError: The label is not one of `labels`, or in a regression it is not a number.
        """
        if split == "test":
            return np.zeros(0, np.int64)
        if self.kind == "regression":
            return np.array([_read_number(example)], np.float32)
        known = labels or self.labels
        if example.label not in known:
            says = f"label {quote(example.label)}, the labels are {join_names(known)}"
            cure = "mend it, or remove the row"
            if not self.labels:
                _check_class(example)
                cure = "mend it, remove the row, or train on examples of it too"
            raise ValueError(f"{example.place}: {says}; {cure}")
        return np.array([known.index(example.label)], np.int64)


def _check_class(example: PairExample) -> None:
    """Refuses a class that is empty, has white space around it, or would break a table.

    Raises:
        ValueError: The example has such a class. The message names file and line.
    """
    label = str(example.label)
    if not label.strip():
        raise ValueError(f"{example.place}: the label is empty; give one, or remove the row")
    if label != label.strip():
        says = f"the label {quote(label)} has white space around it, so it is another class than"
        raise ValueError(f"{example.place}: {says} {quote(label.strip())}; remove the space")
    if any(sign in label for sign in "\t\r\n"):
        says = f"the label {quote(label)} has a tab or a line end"
        raise ValueError(f"{example.place}: {says}, which a .tsv of predictions cannot hold")


def _read_number(example: PairExample) -> float:
    """Returns the label of an example as a finite number, or raises ValueError."""
    with suppress(ValueError):
        number = float(str(example.label))
        if math.isfinite(number):
            return number
    raise ValueError(f"{example.place}: label {quote(example.label)}, expected a number")


def tab_separated(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns the content of a .tsv file with a header and rows of cells."""
    return "".join("\t".join(row) + "\n" for row in [header, *rows])
