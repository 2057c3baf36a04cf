"""The layouts of text: how a file becomes records, a record a text, and whose range it is in.

A document belongs to the range that holds the start of its line, its file, its `<doc ...>` or its
`<page>` tag (in bzip2, of the tag's stream); between blank lines, the last blank line before it,
the first one of a file the byte 0; of an archive's member, the member's header. Row group i of n of
a Parquet file belongs to the range of byte i * size // n. So any cut of a file into ranges gives
every document once. UTF-16 belongs as a whole to the range that starts at 0, and so does a file of
other layouts. A new layout is a file with its `Format` and a line in LAYOUTS
(pipeline.documents.source).
"""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from pipeline.documents import lines
from pipeline.documents.files import FileRange, StorageOptions, open_sized, read_blocks, read_head
from pipeline.documents.jsonl import refuse_json
from pipeline.documents.records import Beginning, Format, Record
from pipeline.documents.sentence_lines import WHICH_FLAG, look_at_lines
from pipeline.documents.source import LAYOUTS
from pipeline.storage.compression import compression_suffix, is_compressed, plain_name
from pipeline.storage.zip_archive import SUFFIX as ZIP
from pipeline.storage.zip_archive import Member, list_members

_MARK_BYTES = 4096  # even compressed, they hold a byte order mark


FORMATS: dict[str, Format] = {}
for _name, _layout in LAYOUTS.items():
    _module = importlib.import_module(f"pipeline.documents.{_layout.partition(':')[0]}")
    FORMATS[_name] = getattr(_module, _layout.partition(":")[2])


def format_of(record: Record, file_range: FileRange) -> Format:
    """The layout of a record: that of its member of an archive, or of its file."""
    return FORMATS[record.format or file_range.format]


def read_records(
    file_range: FileRange, text_field: str = "text", storage_options: StorageOptions = None
) -> Iterator[Record]:
    """The records that belong to a range, lazily."""
    if file_range.url.endswith(ZIP):
        return _read_archive(file_range, storage_options)
    layout = FORMATS[file_range.format]
    is_cut = file_range.num_bytes < file_range.size
    if layout.is_text and is_cut:
        head = read_head(file_range.url, file_range.size, storage_options, _MARK_BYTES)
        if head[:2] in lines.UTF16 and file_range.start > 0:
            return iter(())
        end = file_range.size if head[:2] in lines.UTF16 else file_range.end
        file_range = replace(file_range, end=end)
    if layout.read:
        return layout.read(file_range, text_field, storage_options)
    if layout.split:
        return layout.split(lines.read_lines(file_range, storage_options), file_range)
    return iter([lines.read_whole(read_blocks(file_range, storage_options), file_range.url)])


def _read_archive(file_range: FileRange, storage_options: StorageOptions) -> Iterator[Record]:
    """The records of the members whose headers start in the range."""
    folder, name = open_sized(file_range, storage_options)
    with folder.open(name) as file:
        for member in list_members(file, file_range.size, file_range.url):
            if file_range.start <= member.info.header_offset < file_range.end:
                yield from _read_member(member, file_range)


def _read_member(member: Member, file_range: FileRange) -> Iterator[Record]:
    """The records of a file in an archive."""
    text_format = file_range.format
    file_range.count(member.info.compress_size)
    if text_format == "auto":
        head = next(filter(None, member.blocks()), b"")
        text_format = detect_format(member.where, head)
        # A member is one of many, read when it is too late to ask what the others look like.
        seen = look_at_lines(lines.head_to_utf8(head).decode(errors="replace"), is_whole=False)
        if text_format == "text" and seen.is_likely:
            raise ValueError(f"{member.where}: its beginning has {seen}; {WHICH_FLAG}")
    layout = FORMATS[text_format]
    if layout.read or member.where.endswith(ZIP):
        kind = "zip archive" if member.where.endswith(ZIP) else text_format
        found = f"found a {kind} in an archive, expected text"
        raise ValueError(f"{member.where}: {found}; unpack the outer archive")
    if layout.split:
        whole = FileRange(member.where, 0, sys.maxsize, sys.maxsize, text_format)
        records = layout.split(lines.split_file(member.blocks(), member.where), whole)
    else:
        records = iter([lines.read_whole(member.blocks(), member.where)])
    return (replace(record, member=member.info.filename, format=text_format) for record in records)


def parse_record(record: Record, file_range: FileRange, text_field: str) -> str:
    """The text of a record; raises BadDocumentError."""
    if record.error:
        raise record.error
    text = lines.decode(record.data)
    return format_of(record, file_range).parse(text, record, file_range, text_field)


def may_be_cut(text_format: str, url: str) -> bool:
    """Whether ranges of a file can be read on their own."""
    if url.endswith(ZIP):
        return True
    layout = FORMATS[text_format]
    return layout.may_be_cut and compression_suffix(url) in ("", layout.cut_suffix)


def is_plain(text_format: str, url: str) -> bool:
    """Whether a file's text lies in it byte by byte: not compressed, in columns or an archive."""
    return not (is_compressed(url) or url.endswith(ZIP)) and FORMATS[text_format].is_text


def detect_format(url: str, head: bytes) -> str:
    """What "auto" means for a file: by its name, then by its first bytes; text otherwise.

    Raises ValueError where it is JSON, but not an object a line, or compressed under another name.
    """
    lines.refuse_packed(url, head)
    suffix = PurePosixPath(plain_name(url)).suffix
    beginning = Beginning(suffix, head, lines.head_to_utf8(head).lstrip())
    for name, layout in FORMATS.items():
        if layout.detect and layout.detect(beginning):
            return name
    refuse_json(url, beginning)
    return "text"
