"""Any table by the names of its columns: classes, numbers and choices; and SWAG's."""

import json
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

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

KINDS = {
    "classification": ("classification", ("accuracy", "macro_f1")),
    "regression": ("regression", ("pearson", "spearman", "mean_squared_error")),
    "multiple-choice": ("choice", ("accuracy",)),
    "swag": ("choice", ("accuracy",)),
}
"""The kind of head and the metrics of each task."""

# rowanz/swagaf: the first sentence, the beginning of the second, four ends of it; the first column
# has no name.
SWAG = ColumnSettings(text="sent1", text_b="sent2", label="label")

Names = Sequence[str]


class Record(NamedTuple):
    """One row of a table: file and line, for messages, and cells by column."""

    place: str
    fields: dict[str, str]


def open_table(settings: FinetuneSettings) -> PairTask:
    """The tasks classification, regression, multiple-choice, and swag with its own columns."""
    kind, metrics = KINDS[settings.task]
    columns = SWAG if settings.task == "swag" else settings.columns
    choices = columns.choices if kind == "choice" else ()
    if len(choices) == 1:
        raise ValueError(f"columns.choices is {choices}; a choice needs at least two columns")
    return PairTask(
        kind=kind,
        read=partial(read_pairs, columns, choices),
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
) -> ReadSet:
    """Examples of a table; a row's number stands for an id that it lacks."""
    label = None if split == "test" else columns.label
    needed = [columns.text, *choices, columns.text_b, label, columns.id if needs_id else None]
    skipped: list[str] | None = [] if skips_short_rows else None
    examples = []
    records = read_table(path, [name for name in needed if name], header, skipped)
    for number, (place, fields) in enumerate(records):
        second = None if columns.text_b is None else fields[columns.text_b]
        endings = tuple(f"{second or ''} {fields[name]}".strip() for name in choices)
        row_id, right = fields.get(columns.id or "", str(number)), label and fields[label]
        _check_id(place, columns.id, row_id)
        text = fields[columns.text]
        examples.append(PairExample(place, row_id, text, endings or (second,), right))
    return ReadSet(examples, {} if skipped is None else {"skipped_rows": len(skipped)})


def read_table(
    path: str, needed: Names, header: Names | None = None, skipped: list[str] | None = None
) -> list[Record]:
    """Rows of a .tsv, .csv or .jsonl file, compressed or not; malformed ones are a ValueError.

    In .tsv files quotes mean nothing. `skipped`, where given, gets places of rows with too few
    columns, which are left out.
    """
    extension = plain_name(path).rpartition(".")[2].lower()
    if extension == "jsonl":
        records = [_from_json(place, found, needed) for place, found in read_json_lines(path)]
    elif extension in ("tsv", "csv"):
        lines = ((place, line.split("\t")) for place, line in read_text_lines(path) if line)
        rows = lines if extension == "tsv" else read_csv_rows(path)
        header = header or next(rows, ("", []))[1]
        _check_columns(path, header, needed)
        records = list(_by_name(rows, header, skipped))
    else:
        wanted = ".tsv, .csv or .jsonl (also .gz or .zst after it)"
        raise ValueError(f"{path}: ends in .{extension}, expected {wanted}")
    if not records:
        raise ValueError(f"{path}: has no rows")
    return records


def _by_name(
    rows: Iterator[tuple[str, list[str]]], header: Names, skipped: list[str] | None
) -> Iterator[Record]:
    for place, cells in rows:
        if len(cells) < len(header) and skipped is not None:
            skipped.append(place)
            continue
        if len(cells) != len(header):
            says = f"{len(cells)} columns, expected {len(header)} ({join_names(header)})"
            raise ValueError(f"{place}: {says}")
        yield Record(place, dict(zip(header, cells, strict=True)))


def _check_id(place: str, column: str | None, row_id: str) -> None:
    """Refuses an id that would break the rows of a table of predictions."""
    if any(sign in row_id for sign in "\t\r\n"):
        says = f"the id {quote(row_id)} in the column {column} has a tab or a line end"
        raise ValueError(f"{place}: {says}, which a .tsv of predictions cannot hold; mend it")


def _check_columns(place: str, found: Names, needed: Names) -> None:
    if missing := [name for name in needed if name not in found]:
        says = f"no column {join_names(missing)}; the columns are {join_names(found)}"
        raise ValueError(f"{place}: {says}")
    if len(set(found)) != len(found):
        raise ValueError(f"{place}: two columns have one name: {join_names(found)}")


def _from_json(place: str, values: dict[str, Any], needed: Names) -> Record:
    _check_columns(place, list(values), needed)
    if wrong := [name for name in needed if isinstance(values[name], (dict, list, type(None)))]:
        raise ValueError(f"{place}: {join_names(wrong)} is no text and no number")
    for name in needed:
        value = values[name]
        if isinstance(value, float) and not math.isfinite(value):
            says = f"{name} is {value}, which is no JSON value; give one, or remove the row"
            raise ValueError(f"{place}: {says}")
    written = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    return Record(place, written)


def _write_table(path: str, examples: Examples, predictions: Predictions) -> tuple[str, str]:
    rows = [(example.id, str(value)) for example, value in zip(examples, predictions, strict=True)]
    return f"{file_stem(path)}.tsv", tab_separated(("id", "prediction"), rows)


def _write_swag(path: str, _examples: Examples, predictions: Predictions) -> tuple[str, str]:
    """As SWAG's own program does (csv_predict.py of rowanz/swagaf): the row, from 0, and `pred`."""
    lines = [f"{row},{choice}\n" for row, choice in enumerate(predictions)]
    return f"{file_stem(path)}.csv", "".join([",pred\n", *lines])
