"""Classification and regression of any table by the names of its columns."""

from collections.abc import Sequence
from functools import partial

from trainer.finetune.measures import accuracy, macro_f1, mean_squared_error, pearson, spearman
from trainer.finetune.pairs import PairExample, PairTask, Prediction, tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.table_files import read_table
from trainer.finetune.task import ReadSet, Split
from trainer.finetune.text_files import plain_name


def open_classification(settings: FinetuneSettings) -> PairTask:
    """One of the classes in the training files for each row."""
    return PairTask(
        kind="classification",
        main_metric="accuracy",
        read_examples=partial(read_pairs, settings.columns),
        measure=_measure_classes,
        write_predictions=_write_table,
    )


def open_regression(settings: FinetuneSettings) -> PairTask:
    """A number for each row."""
    return PairTask(
        kind="regression",
        main_metric="pearson",
        read_examples=partial(read_pairs, settings.columns),
        measure=_measure_numbers,
        write_predictions=_write_table,
    )


def read_pairs(columns: ColumnSettings, path: str, split: Split) -> ReadSet:
    """Examples of a table.

    Raises:
        ValueError: A column that is missing, or a row with another number of columns; says file and
            line.
    """
    optional = [columns.text_b, columns.id, None if split == "test" else columns.label]
    table = read_table(path, [columns.text, *(name for name in optional if name is not None)])
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
    return ReadSet(examples)


def _measure_classes(found: Sequence[Prediction], expected: Sequence[Prediction]) -> dict[str, float]:
    classes = [str(value) for value in found], [str(value) for value in expected]
    return {"accuracy": accuracy(*classes), "macro_f1": macro_f1(*classes)}


def _measure_numbers(found: Sequence[Prediction], expected: Sequence[Prediction]) -> dict[str, float]:
    numbers = [float(value) for value in found], [float(value) for value in expected]
    return {
        "pearson": pearson(*numbers),
        "spearman": spearman(*numbers),
        "mean_squared_error": mean_squared_error(*numbers),
    }


def _write_table(path: str, examples: Sequence[PairExample], predictions: Sequence[Prediction]) -> tuple[str, str]:
    rows = [(example.id, str(value)) for example, value in zip(examples, predictions, strict=True)]
    return f"{plain_name(path)}.tsv", tab_separated(("id", "prediction"), rows)
