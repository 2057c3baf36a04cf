"""Tasks that judge a text or a pair of texts, or choose one of several pairs."""

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
Predictions = Sequence[Prediction]


class PairExample(NamedTuple):
    """A text, a pair of texts, or several pairs of which one is right.

    `seconds` are the second text of the pair, None for a single text, or each choice's. The label
    is a class, a number, or the number of the right choice as it is written; None in a test file.
    """

    place: str
    id: str
    text: str
    seconds: tuple[str | None, ...]
    label: str | None


Examples = Sequence[PairExample]


@dataclass(frozen=True)
class PairTask:
    """A `Task` over texts or pairs; benchmarks differ in files, labels and metrics only.

    Every choice is a sequence of its own, and the softmax runs over the choices (BERT paper,
    section 4.4). Labels are the classes where the benchmark fixes them, or numbers of choices; the
    first metric chooses the best run.
    """

    kind: str
    read: Callable[[str, Split], ReadSet]
    metrics: tuple[str, ...]
    write: Callable[[str, Examples, Predictions], tuple[str, str]]
    labels: Labels = ()

    @property
    def main_metric(self) -> str:
        """The first one."""
        return self.metrics[0]

    def count_labels(self, examples: Examples) -> Counter[str]:
        """Counts the classes, or the right choices; empty if the labels are numbers."""
        if self.kind == "regression":
            return Counter()
        return Counter(str(example.label) for example in examples)

    def find_labels(self, examples: Examples) -> Labels:
        """Returns the benchmark's classes, or otherwise the classes in the examples, sorted.

        Raises:
            ValueError: A label cannot be a class, or all examples have one class.
        """
        if self.kind != "classification":
            return ()
        for example in examples:
            _check_class(example)
        found = self.labels or tuple(sorted({str(example.label) for example in examples}))
        if len(found) < 2:
            says = f"every training example has the label {quote(found[0])}; at least 2 differ"
            raise ValueError(f"{examples[0].place}: {says}")
        return found

    def encode(
        self, examples: Examples, labels: Labels, encoder: TextEncoder, split: Split
    ) -> EncodedSet:
        """An item an example; the longer text of a pair is cut, and counted."""
        firsts = encoder.encode_texts([example.text for example in examples])
        texts = [text or "" for example in examples for text in example.seconds]
        seconds = iter(encoder.encode_texts(texts))
        items = []
        counts = Counter(truncated_examples=0, truncated_tokens=0, examples_with_empty_text=0)
        for index, (example, a) in enumerate(zip(examples, firsts, strict=True)):
            pairs = [(text, next(seconds)) for text in example.seconds]
            kept = [encoder.truncate(a, None if text is None else b) for text, b in pairs]
            sequences = tuple(encoder.join(a, b) for a, b, _ in kept)
            items.append(Item(index, sequences, self._encode_label(example, labels, split)))
            removed = sum(count for *_, count in kept)
            counts.update(truncated_examples=removed > 0, truncated_tokens=removed)
            is_empty = not len(a) or any(text is not None and not len(b) for text, b in pairs)
            counts.update(examples_with_empty_text=is_empty)
        return EncodedSet(items, dict(counts))

    def decode(
        self, examples: Examples, items: Sequence[Item], outputs: Outputs, labels: Labels
    ) -> list[Prediction]:
        """The likeliest class or choice, or the number."""
        if self.kind == "regression":
            return [float(output[0]) for output in outputs]
        return [(labels or self.labels)[int(output.argmax())] for output in outputs]

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        """Metrics of the predictions."""
        convert = float if self.kind == "regression" else str
        expected = [convert(str(example.label)) for example in examples]
        return {name: METRICS[name](predictions, expected) for name in self.metrics}

    def prediction_files(
        self, path: str, examples: Examples, predictions: Predictions, tuned: Metrics
    ) -> dict[str, str]:
        """One table."""
        return dict([self.write(path, examples, predictions)])

    def _encode_label(self, example: PairExample, labels: Labels, split: Split) -> NDArray[Any]:
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
    """Refuses a label that is empty, has blanks around it, or would break a table."""
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
    with suppress(ValueError):
        if math.isfinite(number := float(str(example.label))):
            return number
    raise ValueError(f"{example.place}: label {quote(example.label)}, expected a number")


def tab_separated(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Content of a .tsv file."""
    return "".join("\t".join(row) + "\n" for row in [header, *rows])
