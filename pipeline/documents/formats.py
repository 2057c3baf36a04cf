"""The layouts of text: how a file's lines become records, a record a text, and which range a document belongs to.

- text: a file is a document.
- text-blank-lines: blank lines end a document. It belongs to the range in which the last blank line before it starts,
  the first one of a file to the range that starts at 0.
- jsonl: a line is an object with a field of text. It belongs to the range its line starts in.
- wikiextractor: lines from `<doc ...>` to `</doc>`. It belongs to the range its first line starts in.

So any cut of a file into ranges gives every document once. May import: stdlib, pipeline.documents.files.
"""

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pipeline.documents.files import FileRange, Line, StorageOptions, is_compressed, read_lines, read_text_bytes

_TITLE = re.compile('title="(.*)"')
_LOOKS_LIKE_JSON = re.compile(rb'\{\s*["}]')


@dataclass(frozen=True)
class Record:
    """The bytes of one document.

    Attributes:
        number: Line it starts at, counted from the first line read.
        offset: Its first byte in the decompressed file.
        data: Its lines.
        error: What is wrong with it, if its lines already show that.
    """

    number: int
    offset: int
    data: bytes
    error: "BadDocumentError | None" = None


class BadDocumentError(ValueError):
    """A document that cannot be read.

    Attributes:
        reason: To count it by.
        line: At fault, counted from 0 at the record's first line.
    """

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reason, self.line = reason, line


def split_jsonl(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """A record a line; blank lines are no records."""
    for number, offset, data in lines:
        if offset >= file_range.last_offset:
            return
        if data.strip():
            yield Record(number, offset, data)


def split_blank_lines(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Runs of lines that are not blank; lines before the range's first blank line belong to the range before."""
    is_ours = file_range.start == 0
    gathered: list[Line] = []
    for line in lines:
        if line.data.strip():
            if is_ours:
                gathered.append(line)
            continue
        if gathered:
            yield _join(gathered)
            gathered = []
        if line.offset >= file_range.last_offset:
            return
        is_ours = True
    if gathered:
        yield _join(gathered)


def split_wikiextractor(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Lines from `<doc ...>` on, without the closing one. Stray text belongs with the document before it."""
    opened: list[Line] = []
    is_ours = file_range.start == 0
    for line in lines:
        if line.data.startswith(b"<doc "):
            if opened:
                yield _join(opened, _unclosed(f"another one starts {line.number - opened[0].number} lines below"))
            if line.offset >= file_range.last_offset:
                return
            opened, is_ours = [line], True
        elif opened and line.data.startswith(b"</doc>"):
            yield _join(opened)
            opened = []
        elif opened:
            opened.append(line)
        elif is_ours and line.data.strip():
            yield _join([line], BadDocumentError("text_outside_doc", _OUTSIDE.format(line.data[:40])))
            is_ours = False  # one complaint up to the next document
    if opened:
        yield _join(opened, _unclosed("the file ends"))


_OUTSIDE = "found {!r} outside <doc ...> ... </doc>, expected a WikiExtractor file; give the --format it has"


def _unclosed(instead: str) -> BadDocumentError:
    return BadDocumentError("unclosed_doc", f"found <doc ...> without its </doc> line: {instead}")


def _join(lines: list[Line], error: BadDocumentError | None = None) -> Record:
    return Record(lines[0].number, lines[0].offset, b"\n".join(line.data for line in lines), error)


def parse_jsonl(text: str, text_field: str) -> str:
    """The text of one JSON object."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDocumentError("not_json", f"found no JSON ({error}), expected an object in one line") from error
    if not isinstance(found, dict):
        raise BadDocumentError("not_an_object", f"found a JSON {type(found).__name__}, expected an object with fields")
    if text_field not in found:
        message = (
            f"found the fields {sorted(found)}, expected {text_field!r} among them; give the field as --text_field"
        )
        raise BadDocumentError("no_text_field", message)
    value = found[text_field]
    if not isinstance(value, str):
        message = f"found {type(value).__name__} {str(value)[:40]!r} in the field {text_field!r}, expected a string"
        raise BadDocumentError("text_not_a_string", message)
    return value


def parse_wikiextractor(text: str) -> str:
    """The body without the first line, where that is the title."""
    header, _, body = text.partition("\n")
    first, _, rest = body.partition("\n")
    title = _TITLE.search(header)
    if title and first.strip() in {title[1], html.unescape(title[1])}:
        return rest
    return body


def decode(data: bytes) -> str:
    """UTF-8, or an error that knows the line."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        found = (
            f"found the byte 0x{data[error.start]:02x} ({error.reason}), expected UTF-8; convert the file with iconv"
        )
        raise BadDocumentError("not_utf8", found, data.count(b"\n", 0, error.start)) from error


_SPLITTERS: dict[str, Callable[[Iterable[Line], FileRange], Iterator[Record]]] = {
    "text-blank-lines": split_blank_lines,
    "jsonl": split_jsonl,
    "wikiextractor": split_wikiextractor,
}
FORMATS = ("text", *_SPLITTERS)


def read_records(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """The records that belong to a range, lazily."""
    if file_range.format == "text":
        return iter([Record(1, 0, read_text_bytes(file_range, storage_options))])
    return _SPLITTERS[file_range.format](read_lines(file_range, storage_options), file_range)


def parse_record(record: Record, text_format: str, text_field: str) -> str:
    """The text of a record.

    Raises:
        BadDocumentError: It is malformed.
    """
    if record.error:
        raise record.error
    text = decode(record.data)
    if text_format == "jsonl":
        return parse_jsonl(text, text_field)
    return parse_wikiextractor(text) if text_format == "wikiextractor" else text


def may_be_cut(text_format: str, url: str) -> bool:
    """Whether ranges of a file can be read on their own."""
    return text_format != "text" and not is_compressed(url)


def detect_format(url: str, head: bytes) -> str:
    """What "auto" means for a file: jsonl by its name; jsonl or wikiextractor by its first bytes; text otherwise.

    Plain text never counts as text-blank-lines: nothing tells blank lines between documents from those between
    paragraphs.
    """
    name = PurePosixPath(url.removesuffix(".zst"))
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if name.suffix in {".jsonl", ".ndjson"} or _LOOKS_LIKE_JSON.match(first):
        return "jsonl"
    return "wikiextractor" if first.startswith(b"<doc ") else "text"
