"""The layouts of text: how a file is split into records, and how a record becomes a text.

A file may be cut into byte ranges. Every document belongs to exactly one range, however the file is
cut. It is the range that holds:

- for lines, files, `<doc ...>` and `<page>`: the first byte of that line, file or tag. In bzip2 it
  is the first byte of the compressed stream that holds the tag.
- for texts between blank lines: the last blank line before the text. The first text of a file
  belongs to the range with byte 0.
- for a member of a zip: the member's header.
- for row group i of n of a Parquet file: the byte i * size // n.
- for UTF-16 and all other layouts: byte 0, so the whole file is one range's.

A new layout is a file with its `Format` and a line in LAYOUTS (pipeline.documents.source).
"""

import importlib

from pipeline.documents import lines
from pipeline.documents.files import FileRange
from pipeline.documents.records import Format, Record
from pipeline.documents.source import LAYOUTS
from pipeline.storage.archives import archive_kind, is_archive
from pipeline.storage.compression import compression_suffix, is_compressed

FORMATS: dict[str, Format] = {}
for _name, _layout in LAYOUTS.items():
    _module = importlib.import_module(f"pipeline.documents.{_layout.partition(':')[0]}")
    FORMATS[_name] = getattr(_module, _layout.partition(":")[2])


def format_of(record: Record, file_range: FileRange) -> Format:
    """Returns the layout of a record: the one of its archive member, otherwise the file's."""
    return FORMATS[record.format or file_range.format]


def parse_record(record: Record, file_range: FileRange, text_field: str) -> str:
    """Returns the text of a record.

    Raises:
        BadDocumentError: The record is malformed.
    """
    if record.error:
        raise record.error
    text = lines.decode(record.data)
    return format_of(record, file_range).parse(text, record, file_range, text_field)


def may_be_cut(text_format: str, url: str) -> bool:
    """Returns whether a file may be read in several ranges. A tar may not: it lists no members."""
    if is_archive(url):
        return archive_kind(url) == "zip"
    layout = FORMATS[text_format]
    return layout.may_be_cut and compression_suffix(url) in ("", layout.cut_suffix)


def is_plain(text_format: str, url: str) -> bool:
    """Returns whether the file's own bytes are text: no compression, no table, no archive."""
    return not (is_compressed(url) or is_archive(url)) and FORMATS[text_format].is_text
