"""Files of lines, JSON lines and comma-separated rows as text, each with its place: "FILE:LINE".

Files lie at any fsspec URL, compressed or not, in UTF-8, or in UTF-16 with a byte order mark.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.jsonl import parse_object
from pipeline.documents.lines import decode, read_lines, read_whole
from pipeline.documents.records import BadDocumentError, Format, Line, Record, too_long
from pipeline.storage.folder import Folder
from pipeline.storage.quoting import join_names


def whole_file(url: str, storage_options: StorageOptions = None) -> FileRange:
    """All of a file; raises FileNotFoundError."""
    folder, name = Folder.of_file(url, storage_options)
    size = folder.size(name)
    return FileRange(url, 0, size, size, "text")


def read_text_lines(url: str, storage_options: StorageOptions = None) -> Iterator[tuple[str, str]]:
    r"""Places and lines of a file, lazily, without "\n" and "\r\n"."""
    lines = _decode_lines(read_lines(whole_file(url, storage_options), storage_options), url)
    return ((f"{url}:{number}", text.removesuffix("\r")) for number, text in lines)


def read_text(url: str, storage_options: StorageOptions = None) -> str:
    """The text of a file, its line ends as they are."""
    record = read_whole(read_blocks(whole_file(url, storage_options), storage_options), url)
    return _decode(record.data, record.error, url, 1)


def read_json_lines(
    url: str, storage_options: StorageOptions = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Places and objects of a file of JSON lines, lazily."""
    for place, line in read_text_lines(url, storage_options):
        if line.strip():
            found = parse_json(line, place)
            if not isinstance(found, dict):
                kind = type(found).__name__
                raise ValueError(f"{place}: found a JSON {kind}, expected an object in each line")
            yield place, found


def read_csv_rows(
    url: str, storage_options: StorageOptions = None
) -> Iterator[tuple[str, list[str]]]:
    """Places and cells of a file's comma-separated rows, lazily."""
    lines = read_lines(whole_file(url, storage_options), storage_options)
    return ((f"{url}:{number}", cells) for number, cells in _split_rows(lines, url))


def _split_rows(lines: Iterable[Line], url: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.reader((f"{text}\n" for _, text in _decode_lines(lines, url)), strict=True)
    number = 1
    try:
        for cells in reader:
            if cells:
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        if str(error).startswith("new-line character"):
            raise carriage_returns(url) from error
        hint = "a cell with quotes or commas stands in double quotes"
        raise ValueError(f"{url}:{number}: {error}; {hint}") from error


def carriage_returns(url: str) -> ValueError:
    r"""Returns the error about a file of lines that end in "\r" alone, which is one long line."""
    cure = r"tr '\r' '\n' < FILE > NEW writes it anew"
    return ValueError(rf"{url}: its lines end in \r alone, expected \n or \r\n; {cure}")


def parse_json(text: str, place: str) -> Any:
    """The value of a JSON text; raises ValueError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{place}: found no JSON ({error}), expected a value in each line"
        raise ValueError(message) from error


def _decode_lines(lines: Iterable[Line], url: str) -> Iterator[tuple[int, str]]:
    for line in lines:
        error = too_long() if line.is_too_long else None
        yield line.number, _decode(line.data, error, url, line.number)


def _decode(data: bytes, bad: BadDocumentError | None, url: str, line: int) -> str:
    try:
        if bad:
            raise bad
        return decode(data)
    except BadDocumentError as error:
        raise ValueError(f"{url}:{line + error.line}: {error}") from error


def split_csv(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """A record a row, as a JSON object of its cells by column; rows may go over several lines."""
    rows = _split_rows(lines, file_range.url)
    _, names = next(rows, (1, []))
    for number, cells in rows:
        error = None
        if len(cells) != len(names):
            message = f"found {len(cells)} cells, expected {len(names)}: {join_names(names)}"
            error = BadDocumentError("bad_row", message)
        data = json.dumps(dict(zip(names, cells, strict=False))).encode()
        yield Record(number, 0, data, error)


CSV = Format(
    parse_object, lambda beginning: beginning.suffix == ".csv", split_csv, may_be_cut=False
)
