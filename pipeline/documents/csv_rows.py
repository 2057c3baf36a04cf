"""Comma-separated values: a row is a document, its text the column that the first row names."""

import json
from collections.abc import Iterable, Iterator

from pipeline.documents.files import FileRange
from pipeline.documents.format import Format
from pipeline.documents.jsonl import parse_jsonl
from pipeline.documents.records import BadDocumentError, Line, Record
from pipeline.documents.text_files import split_rows


def split_csv(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """A record a row, as a JSON object of its cells by column; rows may go over several lines."""
    rows = split_rows(lines, file_range.url)
    _, names = next(rows, (1, []))
    for number, cells in rows:
        error = None
        if len(cells) != len(names):
            message = f"found {len(cells)} cells, expected {len(names)}: {', '.join(names)}"
            error = BadDocumentError("bad_row", message)
        data = json.dumps(dict(zip(names, cells, strict=False))).encode()
        yield Record(number, 0, data, error)


CSV = Format(
    lambda text, _, __, text_field: parse_jsonl(text, text_field),
    lambda beginning: beginning.suffix == ".csv",
    split_csv,
    may_be_cut=False,
)
