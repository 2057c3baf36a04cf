"""Tables of labelled text: tab- or comma-separated rows, or JSON lines, with named columns.

Names of files end in .tsv, .csv or .jsonl, compressed or not.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.finetune.text_files import data_format, read_text


@dataclass(frozen=True)
class Record:
    """One row of a table.

    Attributes:
        place: File and line, for messages.
        fields: Cells of the row by column.
    """

    place: str
    fields: dict[str, str]


@dataclass(frozen=True)
class Table:
    """A file's rows.

    Attributes:
        records: Rows of the file in order.
        num_skipped: Rows that had fewer columns than the header and were left out, where that is
            allowed.
    """

    records: list[Record]
    num_skipped: int = 0


def read_table(
    path: str,
    needed: Sequence[str],
    header: Sequence[str] | None = None,
    skips_short_rows: bool = False,
) -> Table:
    """Rows of a table.

    In .tsv files quotes mean nothing, as in GLUE's; in .csv cells in double quotes may hold commas
    and line ends.

    Args:
        path: The file.
        needed: Columns that it must have.
        header: Names of the columns of a file without a header.
        skips_short_rows: Whether rows with too few columns are left out and counted.

    Raises:
        ValueError: A row with another number of columns, a column that is missing, or no row; says
            file and line.
    """
    extension = data_format(path)
    if extension == "jsonl":
        table = Table(list(_read_json_lines(path, needed)))
    elif extension in ("tsv", "csv"):
        rows = _tsv_rows(path) if extension == "tsv" else _csv_rows(path)
        table = _by_name(path, list(rows), header, needed, skips_short_rows)
    else:
        raise ValueError(
            f"{path}: ends in .{extension}, expected .tsv, .csv or .jsonl (also .gz or .zst after it)"
        )
    if not table.records:
        raise ValueError(f"{path}: has no rows")
    return table


def _by_name(
    path: str,
    rows: list[tuple[str, list[str]]],
    header: Sequence[str] | None,
    needed: Sequence[str],
    skips_short_rows: bool,
) -> Table:
    if header is None:
        if not rows:
            raise ValueError(f"{path}: is empty, expected a header and rows")
        (_, header), *rows = rows
    _check_columns(path, header, needed)
    records, num_skipped = [], 0
    for place, cells in rows:
        if len(cells) < len(header) and skips_short_rows:
            num_skipped += 1
        elif len(cells) != len(header):
            names = ", ".join(header)
            raise ValueError(f"{place}: {len(cells)} columns, expected {len(header)} ({names})")
        else:
            records.append(Record(place, dict(zip(header, cells, strict=True))))
    return Table(records, num_skipped)


def _check_columns(place: str, found: Sequence[str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(
            f"{place}: no column {', '.join(missing)}; the columns are {', '.join(found)}"
        )
    if len(set(found)) != len(found):
        raise ValueError(f"{place}: two columns have one name: {', '.join(found)}")


def _tsv_rows(path: str) -> Iterator[tuple[str, list[str]]]:
    r"""Lines end at "\n" only; those without any character are passed over."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if text := line.removesuffix("\r"):
            yield f"{path}:{number}", text.split("\t")


def _csv_rows(path: str) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:
                yield f"{path}:{start}", cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}:{start}: {error}; a cell with quotes or commas stands in double quotes"
        ) from error


def _read_json_lines(path: str, needed: Sequence[str]) -> Iterator[Record]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place}: not JSON ({error})") from error
        if not isinstance(values, dict):
            raise ValueError(f"{place}: expected a JSON object, found {type(values).__name__}")  # noqa: TRY004
        _check_columns(place, list(values), needed)
        if nothing := [name for name in needed if values[name] is None]:
            raise ValueError(f"{place}: {', '.join(nothing)} is null, expected a value")
        if nested := [name for name in needed if isinstance(values[name], (dict, list))]:
            raise ValueError(
                f"{place}: {', '.join(nested)} is an array or an object, expected a text or a number"
            )
        fields = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
        yield Record(place, fields)
