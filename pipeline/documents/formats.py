"""The layouts of text: how a file becomes records, a record a text, and whose range it is in.

A document belongs to the range that holds the start of its line, its file, its `<doc ...>` or its
`<page>` tag (in bzip2, of the tag's stream); between blank lines, the last blank line before it,
the first one of a file the byte 0; of a zip's member, the member's header. Row group i of n of a
Parquet file belongs to the range of byte i * size // n. So any cut of a file into ranges gives
every document once. UTF-16 belongs as a whole to the range that starts at 0, and so does a file of
other layouts. A new layout is a file with its `Format` and a line in LAYOUTS
(pipeline.documents.source).
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
    """Returns the layout of a record: that of its member of an archive, or of its file."""
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
    """Tells whether ranges of a file can be read on their own; a tar has no list of members."""
    if is_archive(url):
        return archive_kind(url) == "zip"
    layout = FORMATS[text_format]
    return layout.may_be_cut and compression_suffix(url) in ("", layout.cut_suffix)


def is_plain(text_format: str, url: str) -> bool:
    """Tells whether a file's text is in it byte by byte: not compressed, no table, no archive."""
    return not (is_compressed(url) or is_archive(url)) and FORMATS[text_format].is_text
