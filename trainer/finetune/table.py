"""Implements the tasks over tables whose columns the user names, and SWAG, whose columns are fixed.

A table is a .tsv, .csv or .jsonl file. The tasks are classification, regression and multiple
choice.
"""

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline.documents.files import StorageOptions
from pipeline.documents.text_files import (
    read_csv_rows,
    read_json_lines,
    read_text_lines,
)
from pipeline.storage.compression import plain_name
from pipeline.storage.quoting import join_names, quote
from trainer.finetune.pairs import Examples, PairExample, PairTask, Predictions, tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.task import ReadSet, Split
from trainer.finetune.text import file_stem

HEADS_AND_METRICS = {
    "classification": ("classification", ("accuracy", "macro_f1")),
    "regression": ("regression", ("pearson", "spearman", "mean_squared_error")),
    "multiple-choice": ("choice", ("accuracy",)),
    "swag": ("choice", ("accuracy",)),
}
"""The kind of head and the metrics of each task. The first metric chooses the best run."""

# In SWAG's files (rowanz/swagaf) sent1 is the first sentence and sent2 the beginning of the second,
# which four columns continue. The first column has no name.
SWAG = ColumnSettings(text="sent1", text_b="sent2", label="label")

Names = Sequence[str]
"""Names of columns."""


class Record(NamedTuple):
    """One row of a table.

    Attributes:
        place: File and line, for messages.
        fields: The text of each cell, by the name of its column. Values of a .jsonl file that are
            not texts are written as JSON.
    """

    place: str
    fields: dict[str, str]


def open_table(settings: FinetuneSettings) -> PairTask:
    """Creates the task classification, regression, multiple-choice or swag.

    Raises:
        ValueError: `columns.choices` has a single column.
    """
    kind, metrics = HEADS_AND_METRICS[settings.task]
    columns = SWAG if settings.task == "swag" else settings.columns
    choices = columns.choices if kind == "choice" else ()
    if len(choices) == 1:
        raise ValueError(f"columns.choices is {choices}; a choice needs at least two columns")
    return PairTask(
        kind=kind,
        read=partial(read_pairs, columns, choices, options=settings.filesystem_options()),
        metrics=metrics,
        write=_write_swag if settings.task == "swag" else _write_table,
        labels=tuple(map(str, range(len(choices)))),
    )


def read_pairs(
    columns: ColumnSettings,
    choices: Names,
    path: str,
    split: Split,
    header: Names | None = None,
    skips_short_rows: bool = False,
    needs_id: bool = True,
    options: StorageOptions = None,
) -> ReadSet:
    """Reads the examples of a table.

    Args:
        columns: The columns to read.
        choices: The columns that hold the possible answers of a multiple-choice example. Each
            answer is paired with the text. Empty if an example is a single text or one pair.
        path: Path or URL of the table.
        split: The use of the file. The label column of a "test" file is not read.
        header: The names of the columns, for a file that does not begin with a line of names. None
            reads the names from the file.
        skips_short_rows: Whether rows with too few columns are left out and counted as
            "skipped_rows". If not, such a row is an error.
        needs_id: Whether it is an error if the table lacks the column `columns.id`. If the table
            lacks the column, or if `columns.id` is None, the id of a row is its number, counted
            from 0.
        options: Options of the filesystem of a table at a URL.

    Raises:
        ValueError: The table is malformed. The message names file and line.
    """
    label = None if split == "test" else columns.label
    needed = [columns.text, *choices, columns.text_b, label, columns.id if needs_id else None]
    skipped: list[str] | None = [] if skips_short_rows else None
    examples = []
    records = read_table(path, [name for name in needed if name], header, skipped, options)
    for number, (place, fields) in enumerate(records):
        text = fields[columns.text]
        second = None if columns.text_b is None else fields[columns.text_b]
        endings = tuple(f"{second or ''} {fields[name]}".strip() for name in choices)
        row_id = fields.get(columns.id or "", str(number))
        _check_id(place, columns.id, row_id)
        row_label = label and fields[label]
        examples.append(PairExample(place, row_id, text, endings or (second,), row_label))
    return ReadSet(examples, {} if skipped is None else {"skipped_rows": len(skipped)})


def read_table(
    path: str,
    needed: Names,
    header: Names | None = None,
    skipped: list[str] | None = None,
    options: StorageOptions = None,
) -> list[Record]:
    """Reads the rows of a .tsv, .csv or .jsonl file, compressed or not.

    In .tsv files quotes have no meaning.

    Args:
        path: Path or URL of the table.
        needed: The columns that the table must have.
        header: The names of the columns, for a file that does not begin with a line of names. None
            reads the names from the file. Not used for .jsonl.
        skipped: A list to which the places of rows with too few columns are appended. The rows are
            left out. None means that such a row is an error.
        options: Options of the filesystem of a table at a URL.

    Raises:
        ValueError: The file has another extension, is malformed, lacks a column or has no rows.
    """
    extension = plain_name(path).rpartition(".")[2].lower()
    if extension == "jsonl":
        objects = read_json_lines(path, options)
        records = [_from_json(place, values, needed) for place, values in objects]
    elif extension in ("tsv", "csv"):
        lines = read_text_lines(path, options)
        tsv_rows = ((place, line.split("\t")) for place, line in lines if line)
        rows = tsv_rows if extension == "tsv" else read_csv_rows(path, options)
        header = header or next(rows, ("", []))[1]
        _check_columns(path, header, needed)
        records = list(_by_name(rows, header, skipped))
    else:
        expected = ".tsv, .csv or .jsonl (also .gz or .zst after it)"
        raise ValueError(f"{path}: ends in .{extension}, expected {expected}")
    if not records:
        raise ValueError(f"{path}: has no rows")
    return records


def _by_name(
    rows: Iterator[tuple[str, list[str]]], header: Names, skipped: list[str] | None
) -> Iterator[Record]:
    """Yields a record for each row, lazily.

    Args:
        rows: For each row its file and line, for messages, and its cells.
        header: The names of the columns.
        skipped: A list to which the places of rows with too few cells are appended. None means that
            such a row is an error.

    Raises:
        ValueError: A row has more cells than the header, or fewer and `skipped` is None.
    """
    for place, cells in rows:
        if len(cells) < len(header) and skipped is not None:
            skipped.append(place)
            continue
        if len(cells) != len(header):
            says = f"{len(cells)} columns, expected {len(header)} ({join_names(header)})"
            raise ValueError(f"{place}: {says}")
        yield Record(place, dict(zip(header, cells, strict=True)))


def _check_id(place: str, column: str | None, row_id: str) -> None:
    """Raises ValueError for an id that would break a table of predictions."""
    if any(sign in row_id for sign in "\t\r\n"):
        says = f"the id {quote(row_id)} in the column {column} has a tab or a line end"
        raise ValueError(f"{place}: {says}, which a .tsv of predictions cannot hold; mend it")


def _check_columns(place: str, found: Names, needed: Names) -> None:
    """Raises ValueError if a needed column is missing, or if two columns have one name."""
    missing = [name for name in needed if name not in found]
    if missing:
        says = f"no column {join_names(missing)}; the columns are {join_names(found)}"
        raise ValueError(f"{place}: {says}")
    if len(set(found)) != len(found):
        raise ValueError(f"{place}: two columns have one name: {join_names(found)}")


def _from_json(place: str, values: dict[str, Any], needed: Names) -> Record:
    """Converts the JSON object of a line to a record. Values that are not texts become JSON text.

    Args:
        place: File and line, for messages.
        values: The parsed object.
        needed: The keys that the object must have.

    Raises:
        ValueError: A needed value is missing, or is neither a text nor a finite number.
    """
    _check_columns(place, list(values), needed)
    wrong = [name for name in needed if isinstance(values[name], (dict, list, type(None)))]
    if wrong:
        raise ValueError(f"{place}: {join_names(wrong)} is no text and no number")
    for name in needed:
        value = values[name]
        if isinstance(value, float) and not math.isfinite(value):
            says = f"{name} is {value}, which is no JSON value; give one, or remove the row"
            raise ValueError(f"{place}: {says}")
    fields = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }
    return Record(place, fields)


def _write_table(path: str, examples: Examples, predictions: Predictions) -> tuple[str, str]:
    """Makes a table of predictions with the columns id and prediction.

    Args:
        path: The file whose examples were predicted.
        examples: The examples of the file.
        predictions: One prediction for each example.

    Returns:
        The file name of the table, such as "test.tsv" for "data/test.csv", and its content.
    """
    rows = [(example.id, str(value)) for example, value in zip(examples, predictions, strict=True)]
    return f"{file_stem(path)}.tsv", tab_separated(("id", "prediction"), rows)


def _write_swag(path: str, _examples: Examples, predictions: Predictions) -> tuple[str, str]:
    """Makes a table of predictions as csv_predict.py of rowanz/swagaf writes it.

    The first column, whose name is empty, is the number of the row, counted from 0. The column
    `pred` is the number of the predicted choice.

    Args:
        path: The file whose examples were predicted.
        _examples: Not used.
        predictions: The number of a choice for each example, as text.

    Returns:
        The file name of the table, such as "test.csv", and its content.
    """
    lines = [f"{row},{choice}\n" for row, choice in enumerate(predictions)]
    return f"{file_stem(path)}.csv", "".join([",pred\n", *lines])
