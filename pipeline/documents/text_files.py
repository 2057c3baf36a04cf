"""Reads files of lines, JSON lines and CSV rows, each with its place in the file: "FILE:LINE".

A file may be at any fsspec URL, compressed or not. It is UTF-8, or UTF-16 with a byte order mark.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.documents.delimited import split_rows
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.lines import decode, read_lines, read_whole
from pipeline.documents.records import BadDocumentError, Line, too_long
from pipeline.storage.folder import Folder
from pipeline.storage.quoting import quote

_HALF = re.compile(".{0,20}[\ud800-\udfff]", re.DOTALL)
"""Half of a surrogate pair, with what is before it."""


def whole_file(url: str, storage_options: StorageOptions = None) -> FileRange:
    """Returns a range that is a whole file of plain text.

    Raises:
        FileNotFoundError: There is no such file.
    """
    folder, name = Folder.of_file(url, storage_options)
    size = folder.size(name)
    return FileRange(url, 0, size, size, "text")


def read_text_lines(url: str, storage_options: StorageOptions = None) -> Iterator[tuple[str, str]]:
    r"""Yields every line of a file, without "\n" or "\r\n" at its end, lazily.

    Yields:
        The place of the line, "FILE:LINE", and its text.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is too long, or is not text.
    """
    lines = _decode_lines(read_lines(whole_file(url, storage_options), storage_options), url)
    return ((f"{url}:{number}", text.removesuffix("\r")) for number, text in lines)


def read_text(url: str, storage_options: StorageOptions = None) -> str:
    """Returns the text of a file with its line ends unchanged.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is too long, or is not text.
    """
    record = read_whole(read_blocks(whole_file(url, storage_options), storage_options), url)
    return _decode(record.data, record.error, url, 1)


def read_json_lines(
    url: str, storage_options: StorageOptions = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the JSON object in every line of a file, lazily. Blank lines are skipped.

    Yields:
        The place of the line, "FILE:LINE", and the object.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not a JSON object, or holds half of a character.
    """
    for place, line in read_text_lines(url, storage_options):
        if line.strip():
            value = parse_json(line, place)
            if not isinstance(value, dict):
                kind = type(value).__name__
                found = f"found a JSON {kind}, expected an object in each line"
                raise ValueError(f"{place}: {found}{_cure(line)}")
            refuse_halves(value, line, place)
            yield place, value


def read_csv_rows(
    url: str, storage_options: StorageOptions = None
) -> Iterator[tuple[str, list[str]]]:
    """Yields every row of a CSV file, lazily. The first one has the names of the columns.

    The first rows decide which delimiter separates cells, and what quotes mean.

    Yields:
        The place of the row, "FILE:LINE", and its cells.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A row is malformed.
    """
    lines = read_lines(whole_file(url, storage_options), storage_options)
    for row in split_rows(lines, url, checks_width=False):
        place = f"{url}:{row.number}"
        if row.error:
            raise ValueError(f"{place}: {row.error}") from row.error
        yield place, row.cells


def parse_json(text: str, place: str) -> Any:
    """Parses a JSON text, such as a line of a file, and returns its value.

    Raises:
        ValueError: The line is not JSON. The message begins with `place`.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{place}: found no JSON ({error}), expected a value in each line"
        raise ValueError(f"{message}{_cure(text)}") from error


def _cure(text: str) -> str:
    """Returns advice for the first line of a file that is one JSON array or object, or ""."""
    if text.lstrip().startswith("["):
        return "; `jq -c '.[]' FILE > NEW` writes what an array holds as lines"
    if text.strip() == "{":
        return "; `jq -c . FILE > NEW` writes a value on each line"
    return ""


def refuse_halves(value: Any, source: str, place: str) -> None:
    r"""Refuses half of a character, which JSON can name, as in "\ud83d", and UTF-8 cannot hold.

    Args:
        value: The JSON value that the source stands for.
        source: The source; only if it has such a name, `value` is searched, which takes time.
        place: Where the source is, for the message.

    Raises:
        ValueError: A string in the value has a surrogate without its other half.
    """
    if "\\ud" not in source.lower():
        return
    half = _HALF.search(json.dumps(value, ensure_ascii=False))
    if half:
        expected = "expected whole ones, such as \\ud83d\\ude00; mend the escapes"
        raise ValueError(f"{place}: half of a character ends {quote(half[0])}, {expected}")


def _decode_lines(lines: Iterable[Line], url: str) -> Iterator[tuple[int, str]]:
    """Decodes lines of a file, and yields the number and the text of each.

    Raises:
        ValueError: A line is too long, or is not UTF-8.
    """
    for line in lines:
        error = too_long() if line.is_too_long else None
        yield line.number, _decode(line.data, error, url, line.number)


def _decode(data: bytes, fault: BadDocumentError | None, url: str, line: int) -> str:
    """Decodes bytes of a file, and names file and line if they cannot be read.

    Args:
        data: The bytes, which should be UTF-8.
        fault: The error that a reader has already found in the bytes; None if it has found none.
        url: The file, for the message.
        line: The number of the line at which the bytes begin.

    Raises:
        ValueError: `fault` is given, or the bytes are not UTF-8. The message begins with
            "FILE:LINE".
    """
    try:
        if fault:
            raise fault
        return decode(data)
    except BadDocumentError as error:
        raise ValueError(f"{url}:{line + error.line}: {error}") from error
