"""Reads JSON lines: each line is an object, and one field of it holds the text of a document.

Search dumps of MediaWiki (cirrus) are read as well. In them, every second line is a page.
"""

import contextlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.documents.files import FileRange, StorageOptions, read_head
from pipeline.documents.lines import head_to_text, is_blank
from pipeline.documents.records import BadDocumentError, Beginning, Format, Line, Record, too_long
from pipeline.storage.quoting import join_names

TO_JSON_LINES = (
    "an array becomes such lines by `jq -c '.[]' FILE > FILE.jsonl`, a single object by `jq -c .`"
)

_STRING = rb'"(?:[^"\\\n]|\\.)*"\s*'
_LOOKS_LIKE_JSON = re.compile(rb"\{\s*(?:" + _STRING + rb":|\}\s*(?:\n|\Z))")
_LOOKS_LIKE_ARRAY = re.compile(
    rb'\[\s*(?:\{\s*["}]|\[\s*["\[{]|'
    + _STRING
    + rb'(?:\]\s*(?:\n|\Z)|,\s*(?:["{\[\d-]|null|true|false)))'
)
_ACTION = re.compile(rb'\{\s*"index"\s*:\s*\{[^{}]*\}\s*\}\s*$')
_BEGINS_WITH_ACTION = re.compile(rb'\{\s*"index"\s*:\s*\{[^{}]*"_id"[^{}]*\}\s*\}\s*\n')
_WIKIEXTRACTOR_FIELDS = {"id", "revid", "url", "title", "text"}
_BARE_MARK = re.compile("[<>]|&(?!(?:amp|lt|gt|quot|#x27);)")
_NUM_LINES_LOOKED_AT = 100
_JSON_SUFFIXES = {".json", ".geojson"}


def split_jsonl(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Yields a record for every line that starts in the range and is not blank."""
    last_offset = file_range.last_offset
    for number, offset, data, is_too_long in lines:
        if offset >= last_offset:
            return
        if is_too_long:
            yield Record(number, offset, b"", too_long())
        elif not is_blank(data):
            yield Record(number, offset, data)


def split_cirrus(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Yields a record for every page of a search dump that starts in the range.

    The lines between the pages, which tell the search engine to index the next line, are left out.
    """
    return (record for record in split_jsonl(lines, file_range) if not _ACTION.match(record.data))


def parse_jsonl(text: str, text_field: str) -> str:
    """Returns the text of one JSON object.

    Args:
        text: The object as JSON.
        text_field: The name of the field that holds the text.

    Raises:
        BadDocumentError: The text is no JSON object, the object does not have the field exactly
            once, or the field is not a string.
    """
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = f"; {TO_JSON_LINES}" if text.lstrip()[:1] in "[{" else ""
        message = f"found no JSON ({error}), expected an object in one line{hint}"
        raise BadDocumentError("not_json", message) from error
    if not isinstance(record, dict):
        message = f"found a JSON {type(record).__name__}, expected an object with fields"
        raise BadDocumentError("not_an_object", f"{message}; {TO_JSON_LINES}")
    if text_field not in record:
        fields = join_names(map(repr, sorted(record)))
        message = f"found the fields [{fields}], expected {text_field!r} among them"
        raise BadDocumentError("no_text_field", f"{message}; give the field as --text_field")
    value = record[text_field]
    if not isinstance(value, str):
        kind = f"found {type(value).__name__} {str(value)[:40]!r}"
        message = f"{kind} in the field {text_field!r}, expected a string"
        raise BadDocumentError("text_not_a_string", message)
    # Counting fields takes a second, slower pass, so it is done only if the name occurs twice.
    if text.count(f'"{text_field}"') > 1 and _count_field(text, text_field) > 1:
        message = f"found the field {text_field!r} twice in one object, expected it once"
        raise BadDocumentError("two_text_fields", f"{message}; rename one of them")
    return unescape_text(value) if _is_wikiextractor(record) else value


def _count_field(text: str, text_field: str) -> int:
    """Counts how often the outermost object has a field of this name."""
    names: list[str] = []

    def keep_names(pairs: list[tuple[str, Any]]) -> None:
        names[:] = [name for name, _ in pairs]  # the outermost object ends last

    json.loads(text, object_pairs_hook=keep_names)
    return names.count(text_field)


def _is_wikiextractor(record: dict[str, Any]) -> bool:
    """Returns whether an object is a page of `wikiextractor --json`, which escapes text as HTML."""
    return record.keys() == _WIKIEXTRACTOR_FIELDS and "curid=" in str(record["url"])


def unescape_text(text: str) -> str:
    """Turns entities of HTML such as "&amp;" into characters, if `html.escape` wrote them.

    WikiExtractor may have escaped its texts by `html.escape`. The result of that function has no
    "<" and no ">", and has "&" only at the start of an entity. Any other text was not escaped, and
    is returned unchanged.
    """
    if "&" not in text or _BARE_MARK.search(text):
        return text
    return html.unescape(text)


def refuse_json(url: str, beginning: Beginning) -> None:
    """Refuses JSON that is not JSON lines, such as one array of objects.

    It is called for a file that has no format of its own, and would be read as plain text with all
    brackets and keys.

    Args:
        url: The file, for the message.
        beginning: The file's extension and first bytes.

    Raises:
        ValueError: The file begins like a JSON array, or its extension is .json or .geojson.
    """
    text = beginning.text
    is_array = bool(_LOOKS_LIKE_ARRAY.match(text))
    if is_array or (beginning.suffix in _JSON_SUFFIXES and text):
        found = "a JSON array" if is_array else f"{text[:20].decode(errors='replace')!r}"
        advice = f"{TO_JSON_LINES}, or give --format text to read the file as text as it stands"
        raise ValueError(f"{url}: begins with {found}, expected an object in each line; {advice}")


def _is_jsonl(beginning: Beginning) -> bool:
    """Returns whether a file has an extension of JSON lines, or begins like a JSON object."""
    return beginning.suffix in {".jsonl", ".ndjson"} or bool(_LOOKS_LIKE_JSON.match(beginning.text))


def parse_object(text: str, _: Record, __: FileRange, text_field: str) -> str:
    """Returns the text of a JSON object. This is the `parse` of formats whose records are objects.

    Args:
        text: The record's data, a JSON object.
        _: The record, which is not used.
        __: The range of the file, which is not used.
        text_field: The name of the field that holds the text.

    Raises:
        BadDocumentError: The object is malformed, or does not hold one such text.
    """
    return parse_jsonl(text, text_field)


def _is_cirrus(beginning: Beginning) -> bool:
    """Returns whether a file begins like a search dump of MediaWiki."""
    return bool(_BEGINS_WITH_ACTION.match(beginning.text))


def read_field_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the distinct names of the fields in the first 100 lines of a file.

    Lines that are not JSON are skipped.
    """
    head = read_head(file_range.url, file_range.size, storage_options)
    lines = head_to_text(head).split("\n")
    names: dict[str, None] = {}
    for line in lines[:_NUM_LINES_LOOKED_AT]:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            is_page = isinstance(record, dict) and not _ACTION.match(line.encode(errors="replace"))
            names |= dict.fromkeys(record) if is_page else {}
    return list(names)


CIRRUS = Format(parse_object, _is_cirrus, split_cirrus, names=read_field_names)
JSONL = Format(parse_object, _is_jsonl, split_jsonl, names=read_field_names)
