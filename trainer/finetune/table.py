"""Any table by the names of its columns: classes, numbers and choices; and SWAG's."""

from collections.abc import Sequence
from functools import partial

from trainer.finetune.pairs import PairExample, PairTask, Prediction, tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.table_files import Record, read_table
from trainer.finetune.task import ReadSet, Split
from trainer.finetune.text import file_stem

KINDS = {
    "classification": ("classification", ("accuracy", "macro_f1")),
    "regression": ("regression", ("pearson", "spearman", "mean_squared_error")),
    "multiple-choice": ("choice", ("accuracy",)),
}
"""The kind of head and the metrics of each task."""

# rowanz/swagaf: the first sentence, the beginning of the second, four ends of it; the first column
# has no name.
SWAG = ColumnSettings(text="sent1", text_b="sent2", label="label")


def open_table(settings: FinetuneSettings) -> PairTask:
    """The tasks classification, regression and multiple-choice.

    Raises:
        ValueError: A choice of fewer than two columns.
    """
    kind, metrics = KINDS[settings.task]
    choices = settings.columns.choices if kind == "choice" else ()
    if len(choices) == 1:
        raise ValueError(f"columns.choices is {choices}; a choice needs at least two columns")
    return PairTask(
        kind=kind,
        read_examples=partial(read_pairs, settings.columns, choices),
        metrics=metrics,
        write_predictions=_write_table,
        labels=tuple(map(str, range(len(choices)))),
    )


def open_swag(_settings: FinetuneSettings) -> PairTask:
    """SWAG's own files."""
    return PairTask(
        kind="choice",
        read_examples=partial(read_pairs, SWAG, SWAG.choices),
        metrics=("accuracy",),
        write_predictions=_write_swag,
        labels=("0", "1", "2", "3"),
    )


def read_pairs(columns: ColumnSettings, choices: Sequence[str], path: str, split: Split) -> ReadSet:
    """Examples of a table; those of a test file have no label.

    Raises:
        ValueError: A column that is missing, or a row with another number of columns; says file and
            line.
    """
    optional = [columns.text_b, columns.id, None if split == "test" else columns.label]
    needed = [columns.text, *choices, *(name for name in optional if name is not None)]
    records = read_table(path, needed)
    return ReadSet(
        [make_example(record, n, columns, choices, split) for n, record in enumerate(records)]
    )


def make_example(
    record: Record, number: int, columns: ColumnSettings, choices: Sequence[str], split: Split
) -> PairExample:
    """A row's example; its row's number stands for an id that it lacks."""
    second = None if columns.text_b is None else record.fields[columns.text_b]
    endings = tuple(f"{second or ''} {record.fields[name]}".strip() for name in choices)
    return PairExample(
        place=record.place,
        id=record.fields.get(columns.id or "", str(number)),
        text=record.fields[columns.text],
        seconds=endings or (second,),
        label=None if split == "test" else record.fields[columns.label],
    )


def _write_table(
    path: str, examples: Sequence[PairExample], predictions: Sequence[Prediction]
) -> tuple[str, str]:
    rows = [(example.id, str(value)) for example, value in zip(examples, predictions, strict=True)]
    return f"{file_stem(path)}.tsv", tab_separated(("id", "prediction"), rows)


def _write_swag(
    path: str, _examples: Sequence[PairExample], predictions: Sequence[Prediction]
) -> tuple[str, str]:
    """As SWAG's own program does (csv_predict.py of rowanz/swagaf): the row, from 0, and `pred`."""
    lines = [f"{row},{choice}\n" for row, choice in enumerate(predictions)]
    return f"{file_stem(path)}.csv", "".join([",pred\n", *lines])
