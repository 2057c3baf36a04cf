"""Tasks that judge a text or a pair of texts: one class or one number each."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.finetune.measures import METRICS
from trainer.finetune.task import EncodedSet, Item, Outputs, ReadSet, Split, TokenSequence
from trainer.finetune.text import TextEncoder

Prediction = str | float


@dataclass(frozen=True)
class PairExample:
    """A text or a pair of texts.

    Attributes:
        place: File and line.
        id: What its row of the predictions begins with.
        text: The first text.
        text_b: The second, None for a single text.
        label: Class or number as it is written; None in a test file.
    """

    place: str
    id: str
    text: str
    text_b: str | None
    label: str | None


@dataclass(frozen=True)
class PairTask:
    """A `Task` over texts or pairs; benchmarks differ in files, labels and metrics only.

    Attributes:
        kind: Classification or regression.
        read_examples: Reads one file.
        metrics: Names of the metrics; the first one chooses the best run.
        write_predictions: Name and content of the file of predictions, from the path, the examples
            and predictions.
        labels: The classes where the benchmark fixes them; None to take those of the training
            files.
    """

    kind: str
    read_examples: Callable[[str, Split], ReadSet]
    metrics: tuple[str, ...]
    write_predictions: Callable[[str, Sequence[PairExample], Sequence[Prediction]], tuple[str, str]]
    labels: tuple[str, ...] | None = None

    @property
    def main_metric(self) -> str:
        """The metric that chooses the best run, as `Task` says."""
        return self.metrics[0]

    def read(self, path: str, split: Split) -> ReadSet:
        """Examples of a file, as `Task` says."""
        return self.read_examples(path, split)

    def find_labels(self, examples: Sequence[PairExample]) -> tuple[str, ...]:
        """The classes that the benchmark fixes, or those there are, sorted.

        Raises:
            ValueError: A label is empty, or there is only one; says file and line.
        """
        if self.kind == "regression":
            return ()
        if unlabelled := next((each for each in examples if not str(each.label).strip()), None):
            raise ValueError(f"{unlabelled.place}: the label is empty; give one, or remove the row")
        found = self.labels or tuple(sorted({str(example.label) for example in examples}))
        if len(found) < 2:
            raise ValueError(
                f"{examples[0].place}: every training example has the label {found[0]!r}; at least 2 differ"
            )
        return found

    def encode(
        self,
        examples: Sequence[PairExample],
        labels: tuple[str, ...],
        encoder: TextEncoder,
        split: Split,
    ) -> EncodedSet:
        """One sequence an example; the longer text of a pair is cut, and counted."""
        first = encoder.encode_texts([example.text for example in examples])
        second = encoder.encode_texts([example.text_b or "" for example in examples])
        items, num_cut, num_removed, num_empty = [], 0, 0, 0
        for index, (example, a, b) in enumerate(zip(examples, first, second, strict=True)):
            kept = encoder.truncate(a, None if example.text_b is None else b)
            num_cut, num_removed = num_cut + (kept.num_removed > 0), num_removed + kept.num_removed
            num_empty += not len(a) or (example.text_b is not None and not len(b))
            sequence = TokenSequence(*encoder.join(kept.a, kept.b))
            items.append(Item(index, (sequence,), self._encode_label(example, labels, split)))
        counts = {
            "truncated_examples": num_cut,
            "truncated_tokens": num_removed,
            "examples_with_empty_text": num_empty,
        }
        return EncodedSet(items, counts)

    def decode(
        self,
        examples: Sequence[PairExample],
        items: Sequence[Item],
        outputs: Sequence[Outputs],
        labels: tuple[str, ...],
    ) -> list[Prediction]:
        """The likeliest class, or the number."""
        assert len(examples) == len(items), "one item an example"
        if self.kind == "regression":
            return [float(output[0]) for output in outputs]
        return [labels[int(output.argmax())] for output in outputs]

    def score(
        self, examples: Sequence[PairExample], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Metrics of the predictions."""
        convert = float if self.kind == "regression" else str
        expected = [convert(str(example.label)) for example in examples]
        return {name: METRICS[name](predictions, expected) for name in self.metrics}

    def prediction_files(
        self,
        path: str,
        examples: Sequence[PairExample],
        predictions: Sequence[Prediction],
        metrics: Mapping[str, float],  # noqa: ARG002
    ) -> dict[str, str]:
        """One table."""
        return dict([self.write_predictions(path, examples, predictions)])

    def _encode_label(
        self, example: PairExample, labels: tuple[str, ...], split: Split
    ) -> "np.typing.NDArray[np.float32] | np.typing.NDArray[np.int64]":
        if split == "test":
            return np.zeros(0, np.int64)
        if self.kind == "regression":
            return np.array([read_number(example)], np.float32)
        if example.label not in labels:
            raise ValueError(
                f"{example.place}: label {example.label!r}, the labels are {', '.join(labels)}"
            )
        return np.array([labels.index(example.label)], np.int64)


def read_number(example: PairExample) -> float:
    """The label as a finite number.

    Raises:
        ValueError: It is none; says file and line.
    """
    try:
        number = float(str(example.label))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{example.place}: label {example.label!r}, expected a number")
    return number


def tab_separated(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Content of a .tsv file."""
    return "".join("\t".join(row) + "\n" for row in [header, *rows])
