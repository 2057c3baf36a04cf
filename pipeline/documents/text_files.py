"""Files of lines, JSON lines and comma-separated rows as text, each with its place: "FILE:LINE".

Files lie at any fsspec URL, compressed or not, in UTF-8, or in UTF-16 with a byte order mark.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.documents.delimited import split_rows
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.lines import decode, read_lines, read_whole
from pipeline.documents.records import BadDocumentError, Line, too_long
from pipeline.storage.folder import Folder


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
    """Yields the place and the cells of every row of a file, lazily; the dialect is detected.

    Raises:
        ValueError: A row is malformed.
    """
    lines = read_lines(whole_file(url, storage_options), storage_options)
    for row in split_rows(lines, url, checks_width=False):
        place = f"{url}:{row.number}"
        if row.error:
            raise ValueError(f"{place}: {row.error}") from row.error
        yield place, row.cells


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
