"""Multiple choice: SWAG and any table of the same form.

Every choice is a sequence of its own, [CLS] context [SEP] beginning ending [SEP], and the softmax
runs over the choices (BERT paper, section 4.4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.finetune.measures import accuracy
from trainer.finetune.pairs import tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.table_files import Record, read_table
from trainer.finetune.task import EncodedSet, Item, Outputs, ReadSet, Split, TokenSequence
from trainer.finetune.text import TextEncoder
from trainer.finetune.text_files import plain_name

# rowanz/swagaf: the first sentence, the beginning of the second, four ends of it; the first column
# has no name.
SWAG = ColumnSettings(text="sent1", text_b="sent2", label="label")


@dataclass(frozen=True)
class ChoiceExample:
    """One question.

    Attributes:
        place: File and line.
        id: What its row of the predictions begins with.
        context: The text that all choices follow.
        endings: The choices, each with the beginning that they share.
        label: The right one, counted from 0; None in a test file.
    """

    place: str
    id: str
    context: str
    endings: tuple[str, ...]
    label: int | None


@dataclass(frozen=True)
class ChoiceTask:
    """A `Task` of multiple choice.

    Attributes:
        columns: Names of the columns of its files.
        is_swag: Whether predictions are written as SWAG's own program does (csv_predict.py of
            rowanz/swagaf).
        kind: The kind of head, as `Task` says; main_metric likewise.
    """

    columns: ColumnSettings
    is_swag: bool = False
    kind: str = "choice"
    main_metric: str = "accuracy"

    def read(self, path: str, split: Split) -> ReadSet:
        """Questions of a table, as `Task` says."""
        columns = self.columns
        optional = [columns.text_b, columns.id, None if split == "test" else columns.label]
        needed = [columns.text, *columns.choices, *(name for name in optional if name is not None)]
        records = read_table(path, needed).records
        return ReadSet(
            [self._example(record, number, split) for number, record in enumerate(records)]
        )

    def find_labels(self, examples: Sequence[ChoiceExample]) -> tuple[str, ...]:  # noqa: ARG002
        """None: choices have no names."""
        return ()

    def encode(
        self,
        examples: Sequence[ChoiceExample],
        labels: tuple[str, ...],  # noqa: ARG002
        encoder: TextEncoder,
        split: Split,
    ) -> EncodedSet:
        """A sequence for each choice; the longer of context and ending is cut, and counted."""
        contexts = encoder.encode_texts([example.context for example in examples])
        endings = iter(
            encoder.encode_texts([ending for example in examples for ending in example.endings])
        )
        items, num_cut, num_removed = [], 0, 0
        for index, (example, context) in enumerate(zip(examples, contexts, strict=True)):
            kept = [encoder.truncate(context, next(endings)) for _ in example.endings]
            removed = [each.num_removed for each in kept]
            num_cut, num_removed = num_cut + any(removed), num_removed + sum(removed)
            sequences = tuple(TokenSequence(*encoder.join(each.a, each.b)) for each in kept)
            right = [] if split == "test" or example.label is None else [example.label]
            items.append(Item(index, sequences, np.array(right, np.int64)))
        return EncodedSet(items, {"truncated_examples": num_cut, "truncated_tokens": num_removed})

    def decode(
        self,
        examples: Sequence[ChoiceExample],
        items: Sequence[Item],
        outputs: Sequence[Outputs],
        labels: tuple[str, ...],  # noqa: ARG002
    ) -> list[int]:
        """The likeliest choice of each question."""
        assert len(examples) == len(items), "one item an example"
        return [int(output.argmax()) for output in outputs]

    def score(
        self, examples: Sequence[ChoiceExample], predictions: Sequence[int]
    ) -> dict[str, float]:
        """Share of questions answered right."""
        return {
            "accuracy": accuracy(
                [str(each) for each in predictions], [str(each.label) for each in examples]
            )
        }

    def prediction_files(
        self,
        path: str,
        examples: Sequence[ChoiceExample],
        predictions: Sequence[int],
        metrics: Mapping[str, float],  # noqa: ARG002
    ) -> dict[str, str]:
        """One table of ids and choices; for SWAG `NAME.csv` with the row, from 0, and `pred`."""
        if self.is_swag:
            lines = [f"{row},{choice}\n" for row, choice in enumerate(predictions)]
            return {f"{plain_name(path)}.csv": "".join([",pred\n", *lines])}
        rows = [
            (example.id, str(choice)) for example, choice in zip(examples, predictions, strict=True)
        ]
        return {f"{plain_name(path)}.tsv": tab_separated(("id", "prediction"), rows)}

    def _example(self, record: Record, number: int, split: Split) -> ChoiceExample:
        columns, fields = self.columns, record.fields
        beginning = "" if columns.text_b is None else fields[columns.text_b]
        return ChoiceExample(
            place=record.place,
            id=str(number) if columns.id is None else fields[columns.id],
            context=fields[columns.text],
            endings=tuple(f"{beginning} {fields[name]}".strip() for name in columns.choices),
            label=None if split == "test" else self._label(record),
        )

    def _label(self, record: Record) -> int:
        text, last = record.fields[self.columns.label], len(self.columns.choices) - 1
        if text not in {str(index) for index in range(last + 1)}:
            raise ValueError(
                f"{record.place}: label {text!r}, expected the number of a choice, 0 to {last}"
            )
        return int(text)


def open_swag(_settings: FinetuneSettings) -> ChoiceTask:
    """SWAG's own files."""
    return ChoiceTask(SWAG, is_swag=True)


def open_multiple_choice(settings: FinetuneSettings) -> ChoiceTask:
    """Any table with a context and choices.

    Raises:
        ValueError: Fewer than two columns of choices.
    """
    if len(settings.columns.choices) < 2:
        raise ValueError(
            f"columns.choices is {settings.columns.choices}; a choice needs at least two columns"
        )
    return ChoiceTask(settings.columns)
