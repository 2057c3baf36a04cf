"""JSONL: a line is an object with a field of text. In MediaWiki's search dumps, every second is."""

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
    """A record a line; blank lines are no records."""
    last_offset = file_range.last_offset
    for number, offset, data, is_too_long in lines:
        if offset >= last_offset:
            return
        if is_too_long:
            yield Record(number, offset, b"", too_long())
        elif not is_blank(data):
            yield Record(number, offset, data)


def split_cirrus(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """A record a page: the lines between name it to the search engine."""
    return (record for record in split_jsonl(lines, file_range) if not _ACTION.match(record.data))


def parse_jsonl(text: str, text_field: str) -> str:
    """Returns the text of one JSON object.

    Raises:
        BadDocumentError: The text is no JSON object, the object does not have the field exactly
            once, or the field is not a string.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = f"; {TO_JSON_LINES}" if text.lstrip()[:1] in "[{" else ""
        message = f"found no JSON ({error}), expected an object in one line{hint}"
        raise BadDocumentError("not_json", message) from error
    if not isinstance(found, dict):
        message = f"found a JSON {type(found).__name__}, expected an object with fields"
        raise BadDocumentError("not_an_object", f"{message}; {TO_JSON_LINES}")
    if text_field not in found:
        fields = join_names(map(repr, sorted(found)))
        message = f"found the fields [{fields}], expected {text_field!r} among them"
        raise BadDocumentError("no_text_field", f"{message}; give the field as --text_field")
    value = found[text_field]
    if not isinstance(value, str):
        kind = f"found {type(value).__name__} {str(value)[:40]!r}"
        message = f"{kind} in the field {text_field!r}, expected a string"
        raise BadDocumentError("text_not_a_string", message)
    # Only an object with the name written twice is worth the slower look.
    if text.count(f'"{text_field}"') > 1 and _count_field(text, text_field) > 1:
        message = f"found the field {text_field!r} twice in one object, expected it once"
        raise BadDocumentError("two_text_fields", f"{message}; rename one of them")
    return unescape_text(value) if _is_wikiextractor(found) else value


def _count_field(text: str, text_field: str) -> int:
    """Counts how often the outermost object has a field of this name."""
    names: list[str] = []

    def keep_names(pairs: list[tuple[str, Any]]) -> None:
        names[:] = [name for name, _ in pairs]  # the outermost object is the last to end

    json.loads(text, object_pairs_hook=keep_names)
    return names.count(text_field)


def _is_wikiextractor(record: dict[str, Any]) -> bool:
    """Returns whether an object is a page of `wikiextractor --json`, which escapes text as HTML."""
    return record.keys() == _WIKIEXTRACTOR_FIELDS and "curid=" in str(record["url"])


def unescape_text(text: str) -> str:
    """Undoes the HTML escapes of an extractor. A text with a bare "<", ">" or "&" has none.

    `html.escape` leaves no "<" and no ">", and writes "&" only as the start of an entity.
    """
    if "&" not in text or _BARE_MARK.search(text):
        return text
    return html.unescape(text)


def refuse_json(url: str, beginning: Beginning) -> None:
    """JSON that is no lines of objects would be read as text, brackets, keys and all."""
    first = beginning.text
    is_array = bool(_LOOKS_LIKE_ARRAY.match(first))
    if is_array or (beginning.suffix in _JSON_SUFFIXES and first):
        found = "a JSON array" if is_array else f"{first[:20].decode(errors='replace')!r}"
        advice = f"{TO_JSON_LINES}, or give --format text to read the file as text as it stands"
        raise ValueError(f"{url}: begins with {found}, expected an object in each line; {advice}")


def _is_jsonl(beginning: Beginning) -> bool:
    return beginning.suffix in {".jsonl", ".ndjson"} or bool(_LOOKS_LIKE_JSON.match(beginning.text))


def parse_object(text: str, _: Record, __: FileRange, text_field: str) -> str:
    """The field of text of a record that is an object."""
    return parse_jsonl(text, text_field)


def _is_cirrus(beginning: Beginning) -> bool:
    return bool(_BEGINS_WITH_ACTION.match(beginning.text))


def read_field_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the distinct names of the fields of a file's first objects; bad lines are skipped."""
    head = read_head(file_range.url, file_range.size, storage_options)
    lines = head_to_text(head).split("\n")
    names: dict[str, None] = {}
    for line in lines[:_NUM_LINES_LOOKED_AT]:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            is_page = isinstance(found, dict) and not _ACTION.match(line.encode(errors="replace"))
            names |= dict.fromkeys(found) if is_page else {}
    return list(names)


CIRRUS = Format(parse_object, _is_cirrus, split_cirrus, names=read_field_names)
JSONL = Format(parse_object, _is_jsonl, split_jsonl, names=read_field_names)
