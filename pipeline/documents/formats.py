"""The layouts of text: how a file becomes records, a record a text, and which range a document belongs to.

- text: a file is a document.
- text-blank-lines, sentence-lines: blank lines end a document; in the second a line is a sentence. It belongs to the
  range in which the last blank line before it starts, the first one of a file to the range that starts at 0.
- jsonl: a line is an object with a field of text. It belongs to the range its line starts in.
- wikiextractor: lines from `<doc ...>` to `</doc>`. It belongs to the range its first line starts in.
- mediawiki: a page of an XML dump. It belongs to the range its tag starts in, in bzip2 that tag's stream.
- warc: a page of a WARC or WET file, which is not cut.
- parquet: a row is a document, a column its text. Row group i of n belongs to the range of byte i * size // n.

A zip archive holds files of these: a member belongs to the range its header starts in.
So any cut of a file into ranges gives every document once. UTF-16 belongs as a whole to the range that starts at 0.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from pipeline.documents.compression import is_compressed, plain_name
from pipeline.documents.encoding import MARK_BYTES, decode, head_to_utf8, is_utf16
from pipeline.documents.files import FileRange, StorageOptions, read_blocks, read_head
from pipeline.documents.jsonl import TO_JSON_LINES, parse_jsonl, split_jsonl
from pipeline.documents.lines import read_lines, read_whole, split_file
from pipeline.documents.mediawiki import ROOT_TAG, read_pages
from pipeline.documents.parquet import MAGIC, read_rows
from pipeline.documents.plain_text import split_blank_lines
from pipeline.documents.records import Line, Record
from pipeline.documents.sentence_lines import SENTENCE_LINES, WHICH_FLAG, look_at_lines
from pipeline.documents.warc import HTML, read_warc
from pipeline.documents.warc import MAGIC as WARC_MAGIC
from pipeline.documents.web_page import extract_text
from pipeline.documents.wikiextractor import parse_wikiextractor, split_wikiextractor
from pipeline.documents.wikitext import parse_wikitext
from pipeline.documents.wrapping import unwrap
from pipeline.documents.zip_archive import SUFFIX as ZIP
from pipeline.documents.zip_archive import Member, read_members

_COMPRESSED_MARK_BYTES = 4096  # as many more are read as it takes to decompress the first two bytes
_LOOKS_LIKE_JSON = re.compile(rb'\{\s*["}]')
_LOOKS_LIKE_ARRAY = re.compile(rb'\[\s*(?:\{\s*["}]|\[\s*["\[{]|"(?:[^"\\\n]|\\.)*"\s*[,\]])')
_JSON_SUFFIXES = {".json", ".geojson"}
_SPLITTERS: dict[str, Callable[[Iterable[Line], FileRange], Iterator[Record]]] = {
    "text-blank-lines": split_blank_lines,
    SENTENCE_LINES: split_blank_lines,
    "jsonl": split_jsonl,
    "wikiextractor": split_wikiextractor,
}
LINE_FORMATS = ("text", *_SPLITTERS)
FORMATS = (*LINE_FORMATS, "parquet", "mediawiki", "warc")


def read_records(
    file_range: FileRange, text_field: str = "text", storage_options: StorageOptions = None
) -> Iterator[Record]:
    """The records that belong to a range, lazily."""
    if file_range.url.endswith(ZIP):
        return (
            record
            for member in read_members(file_range, storage_options)
            for record in _read_member(member, file_range.format)
        )
    if file_range.format == "text":
        return iter([read_whole(read_blocks(file_range, storage_options), file_range.url)])
    if file_range.format == "parquet":
        return read_rows(file_range, text_field, storage_options)
    if file_range.format == "warc":
        return read_warc(file_range, storage_options)
    if file_range.num_bytes < file_range.size and _is_utf16(file_range, storage_options):
        if file_range.start > 0:
            return iter(())
        file_range = replace(file_range, end=file_range.size)
    if file_range.format == "mediawiki":
        return read_pages(file_range, storage_options)
    return _SPLITTERS[file_range.format](read_lines(file_range, storage_options), file_range)


def _is_utf16(file_range: FileRange, storage_options: StorageOptions) -> bool:
    num_bytes = _COMPRESSED_MARK_BYTES if is_compressed(file_range.url) else MARK_BYTES
    return is_utf16(read_head(file_range.url, file_range.size, storage_options, num_bytes))


def _read_member(member: Member, text_format: str) -> Iterator[Record]:
    """The records of a file in an archive."""
    if text_format == "auto":
        head = next(filter(None, member.blocks()), b"")
        text_format = detect_format(member.where, head)
        if text_format == "text":
            _refuse_sentence_lines(member.where, head)
    if text_format not in LINE_FORMATS or member.where.endswith(ZIP):
        kind = "zip archive" if member.where.endswith(ZIP) else text_format
        raise ValueError(f"{member.where}: found a {kind} in an archive, expected text; unpack the outer archive")
    whole = FileRange(member.where, 0, sys.maxsize, sys.maxsize, text_format)
    if text_format == "text":
        records = iter([read_whole(member.blocks(), member.where)])
    else:
        records = _SPLITTERS[text_format](split_file(member.blocks(), member.where), whole)
    return (replace(record, member=member.info.filename, format=text_format) for record in records)


def _refuse_sentence_lines(where: str, head: bytes) -> None:
    """A member is one of many, read when it is too late to ask what the others look like."""
    seen = look_at_lines(head_to_utf8(head).decode(errors="replace"), is_whole=False)
    if seen.is_likely:
        raise ValueError(f"{where}: its beginning has {seen}; {WHICH_FLAG}")


def parse_record(record: Record, file_range: FileRange, text_field: str) -> str:
    """The text of a record.

    Raises:
        BadDocumentError: It is malformed.
    """
    if record.error:
        raise record.error
    text, text_format = decode(record.data), record.format or file_range.format
    if text_format == "text":
        return unwrap(text, file_range.wrapping)
    if text_format == "jsonl":
        return parse_jsonl(text, text_field)
    if text_format == "mediawiki":
        return parse_wikitext(text, record.hidden_prefixes)
    if text_format == HTML:
        return extract_text(text)
    return parse_wikiextractor(text) if text_format == "wikiextractor" else text


def may_be_cut(text_format: str, url: str) -> bool:
    """Whether ranges of a file can be read on their own."""
    if text_format == "mediawiki" and url.endswith(".bz2"):
        return True
    return url.endswith(ZIP) or (text_format not in {"text", "warc"} and not is_compressed(url))


def detect_format(url: str, head: bytes) -> str:
    """What "auto" means for a file: by its name, then by its first bytes; text otherwise.

    Of plain text nothing is said of blank lines: `pipeline.documents.choose_formats` looks at all of a source.

    Raises:
        ValueError: It is JSON, but not an object a line.
    """
    name = PurePosixPath(plain_name(url))
    if name.suffix == ".parquet" or head.startswith(MAGIC):
        return "parquet"
    first = head_to_utf8(head).lstrip()
    if head.startswith(WARC_MAGIC):
        return "warc"
    if ROOT_TAG in first[:1000]:
        return "mediawiki"
    if name.suffix in {".jsonl", ".ndjson"} or _LOOKS_LIKE_JSON.match(first):
        return "jsonl"
    if first.startswith(b"<doc "):
        return "wikiextractor"
    _refuse_json(url, name.suffix, first)
    return "text"


def _refuse_json(url: str, suffix: str, first: bytes) -> None:
    """JSON that is no lines of objects would be read as text, brackets, keys and all."""
    is_array = bool(_LOOKS_LIKE_ARRAY.match(first))
    if is_array or (suffix in _JSON_SUFFIXES and first):
        found = "a JSON array" if is_array else f"{first[:20].decode(errors='replace')!r}"
        raise ValueError(
            f"{url}: begins with {found}, expected an object in each line; {TO_JSON_LINES}, or give --format text to"
            " read the file as text as it stands"
        )
