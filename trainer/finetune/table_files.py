"""Tables of labelled text: tab- or comma-separated rows, or JSON lines, with named columns."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.documents.text_files import read_csv_rows, read_json_lines, read_text_lines
from pipeline.storage.compression import plain_name


@dataclass(frozen=True)
class Record:
    """One row of a table.

    Attributes:
        place: File and line, for messages.
        fields: Cells of the row by column.
    """

    place: str
    fields: dict[str, str]


def read_table(
    path: str,
    needed: Sequence[str],
    header: Sequence[str] | None = None,
    skipped: list[str] | None = None,
) -> list[Record]:
    """Rows of a .tsv, .csv or .jsonl file, compressed or not.

    In .tsv files quotes mean nothing, as in GLUE's; in .csv cells in double quotes may hold commas
    and line ends.

    Args:
        path: The file.
        needed: Columns that it must have.
        header: Names of the columns of a file without a header.
        skipped: Where it is given, it gets the places of rows with too few columns, which are then
            left out.

    Raises:
        ValueError: A row with another number of columns, a column that is missing, or no row; says
            file and line.
    """
    extension = plain_name(path).rpartition(".")[2].lower()
    if extension == "jsonl":
        records = [_from_json(place, found, needed) for place, found in read_json_lines(path)]
    elif extension == "tsv":
        rows = ((place, line.split("\t")) for place, line in read_text_lines(path) if line)
        records = _by_name(path, rows, header, needed, skipped)
    elif extension == "csv":
        records = _by_name(path, read_csv_rows(path), header, needed, skipped)
    else:
        raise ValueError(
            f"{path}: ends in .{extension}, expected .tsv, .csv or .jsonl (also .gz or .zst after it)"
        )
    if not records:
        raise ValueError(f"{path}: has no rows")
    return records


def _by_name(
    path: str,
    rows: Iterator[tuple[str, list[str]]],
    header: Sequence[str] | None,
    needed: Sequence[str],
    skipped: list[str] | None,
) -> list[Record]:
    header = header or next(rows, ("", []))[1]
    _check_columns(path, header, needed)
    records = []
    for place, cells in rows:
        if len(cells) < len(header) and skipped is not None:
            skipped.append(place)
            continue
        if len(cells) != len(header):
            names = ", ".join(header)
            raise ValueError(f"{place}: {len(cells)} columns, expected {len(header)} ({names})")
        records.append(Record(place, dict(zip(header, cells, strict=True))))
    return records


def _check_columns(place: str, found: Sequence[str], needed: Sequence[str]) -> None:
    if missing := [name for name in needed if name not in found]:
        columns = ", ".join(found)
        raise ValueError(f"{place}: no column {', '.join(missing)}; the columns are {columns}")
    if len(set(found)) != len(found):
        raise ValueError(f"{place}: two columns have one name: {', '.join(found)}")


def _from_json(place: str, values: dict[str, Any], needed: Sequence[str]) -> Record:
    _check_columns(place, list(values), needed)
    if wrong := [name for name in needed if isinstance(values[name], (dict, list, type(None)))]:
        raise ValueError(f"{place}: {', '.join(wrong)} is no text and no number")
    fields = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }
    return Record(place, fields)
