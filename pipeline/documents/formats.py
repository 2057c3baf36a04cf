"""The table of formats, and the functions that depend on a file's format.

A file may be cut into byte ranges, which different tasks read. Every document belongs to exactly
one range, however the file is cut. The format decides which byte of the file counts:

- A line belongs to the range that holds its first byte. So does a document that begins with the tag
  `<doc ...>` or `<page>`. In a bzip2 file of `<page>` tags, the first byte of the compressed stream
  that holds the tag decides.
- A text between blank lines belongs to the range that holds the start of the last blank line before
  it. The first text of a file belongs to the range with byte 0.
- A member of a zip archive belongs to the range that holds the start of the member's header.
- Row group i of the n groups of a Parquet file belongs to the range with the byte i * size // n.
- A file of any other format, or in UTF-16, belongs as a whole to the range with byte 0.

docs/architecture.md shows how a format is added.
"""

import importlib

from pipeline.documents import lines
from pipeline.documents.files import FileRange
from pipeline.documents.kinds import KINDS
from pipeline.documents.records import Beginning, Format, Record
from pipeline.documents.source import LAYOUTS
from pipeline.storage.archives import archive_kind, is_archive
from pipeline.storage.compression import compression_suffix, is_compressed


def find_refused_suffixes(layout: Format) -> list[str]:
    """Returns the file extensions that a format accepts as its own, but that `KINDS` refuses.

    `KINDS` lists the kinds of files that are refused, such as PDF. It is asked before any format.
    So a file with such an extension would never be read, and the result must be empty.
    """
    suffixes = [suffix for kind in KINDS for suffix in kind.suffixes.split()]
    detect = layout.detect
    return [suffix for suffix in suffixes if detect and detect(Beginning(suffix, b"", b""))]


def _load_formats() -> dict[str, Format]:
    """Imports the formats that LAYOUTS names; returns them by their names."""
    formats: dict[str, Format] = {}
    for name, place in LAYOUTS.items():
        module_name, _, variable = place.partition(":")
        module = importlib.import_module(f"pipeline.documents.{module_name}")
        formats[name] = getattr(module, variable)
        refused = find_refused_suffixes(formats[name])
        assert not refused, (
            f"the format {name} detects {', '.join(refused)}, which KINDS in kinds.py refuses"
            " before any format is asked; take it out of KINDS"
        )
    return formats


FORMATS = _load_formats()
"""The formats by their names, in the order in which `auto` tries them."""


def format_of(record: Record, file_range: FileRange) -> Format:
    """Returns the format of a record: that of the archive's member, or that of the file."""
    return FORMATS[record.format or file_range.format]


def parse_record(record: Record, file_range: FileRange, text_field: str) -> str:
    """Returns the text of a record.

    Args:
        record: The record.
        file_range: The range that it was read from.
        text_field: The name of the field or column that holds the text, if the format has such.

    Raises:
        BadDocumentError: The record is malformed.
    """
    if record.error:
        raise record.error
    text = lines.decode(record.data)
    return format_of(record, file_range).parse(text, record, file_range, text_field)


def may_be_cut(text_format: str, url: str) -> bool:
    """Returns whether a file may be cut into byte ranges.

    A zip archive may be cut between its members, because its directory says where they are. A tar
    archive has no directory, and is never cut.
    """
    if is_archive(url):
        return archive_kind(url) == "zip"
    layout = FORMATS[text_format]
    return layout.may_be_cut and compression_suffix(url) in ("", layout.cut_suffix)


def is_plain(text_format: str, url: str) -> bool:
    """Returns whether the stored bytes of a file are text: no compression, table or archive.

    Args:
        text_format: The name of the file's format, a key of `FORMATS`.
        url: The file, whose name tells whether it is compressed or an archive.
    """
    return not (is_compressed(url) or is_archive(url)) and FORMATS[text_format].is_text
