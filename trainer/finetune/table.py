"""Classification and regression of any table by the names of its columns."""

from collections.abc import Sequence
from functools import partial

from trainer.finetune.pairs import PairExample, PairTask, Prediction, tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.table_files import read_table
from trainer.finetune.task import ReadSet, Split
from trainer.finetune.text_files import plain_name


def open_classification(settings: FinetuneSettings) -> PairTask:
    """One of the classes in the training files for each row."""
    return PairTask(
        kind="classification",
        metrics=("accuracy", "macro_f1"),
        read_examples=partial(read_pairs, settings.columns),
        write_predictions=_write_table,
    )


def open_regression(settings: FinetuneSettings) -> PairTask:
    """A number for each row."""
    return PairTask(
        kind="regression",
        metrics=("pearson", "spearman", "mean_squared_error"),
        read_examples=partial(read_pairs, settings.columns),
        write_predictions=_write_table,
    )


def read_pairs(
    columns: ColumnSettings,
    path: str,
    split: Split,
    header: Sequence[str] | None = None,
    skips_short_rows: bool = False,
) -> ReadSet:
    """Examples of a table; those of a test file have no label.

    Args:
        columns: Names of the columns that are read.
        path: The file.
        split: What the examples are for.
        header: Names of all columns of a file without a header.
        skips_short_rows: Whether rows with too few columns are left out and counted.

    Raises:
        ValueError: A column that is missing, or a row with another number of columns; says file and
            line.
    """
    optional = [columns.text_b, columns.id, None if split == "test" else columns.label]
    needed = [columns.text, *(name for name in optional if name is not None)]
    table = read_table(path, needed, header, skips_short_rows)
    examples = [
        PairExample(
            place=record.place,
            id=str(number) if columns.id is None else record.fields[columns.id],
            text=record.fields[columns.text],
            text_b=None if columns.text_b is None else record.fields[columns.text_b],
            label=None if split == "test" else record.fields[columns.label],
        )
        for number, record in enumerate(table.records)
    ]
    return ReadSet(examples, {"skipped_rows": table.num_skipped} if skips_short_rows else {})


def _write_table(
    path: str, examples: Sequence[PairExample], predictions: Sequence[Prediction]
) -> tuple[str, str]:
    rows = [(example.id, str(value)) for example, value in zip(examples, predictions, strict=True)]
    return f"{plain_name(path)}.tsv", tab_separated(("id", "prediction"), rows)
