"""Reads the records that belong to a byte range of a file or of an archive."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from pipeline.documents import lines
from pipeline.documents.detect import detect_format
from pipeline.documents.files import (
    TAIL_BLOCK_BYTES,
    FileRange,
    StorageOptions,
    open_sized,
    read_blocks,
    read_head,
)
from pipeline.documents.formats import FORMATS
from pipeline.documents.records import Record
from pipeline.documents.sentence_lines import WHICH_FLAG, look_at_lines
from pipeline.storage.archives import archive_kind
from pipeline.storage.tar_archive import TarMember, iterate_members
from pipeline.storage.zip_archive import ZipMember, list_members

_MARK_BYTES = 4096  # enough to decompress a byte order mark


def read_records(
    file_range: FileRange, text_field: str = "text", storage_options: StorageOptions = None
) -> Iterator[Record]:
    """Yields the records that belong to a range, lazily.

    Args:
        file_range: The range.
        text_field: The name of the field or column that holds the text, if the format has such.
        storage_options: Options of the filesystem.

    A record that cannot be read is yielded with an `error`.

    Raises:
        ValueError: The file as a whole is broken or cannot be read.
    """
    kind = archive_kind(file_range.url)
    if kind == "zip":
        return _read_zip(file_range, storage_options)
    if kind:
        return _read_tar(file_range, storage_options)

    layout = FORMATS[file_range.format]
    is_cut = file_range.num_bytes < file_range.size
    if layout.is_text and is_cut:
        # UTF-16 is not cut: the range with byte 0 has the whole file.
        head = read_head(file_range.url, file_range.size, storage_options, _MARK_BYTES)
        if head[:2] in lines.UTF16 and file_range.start > 0:
            return iter(())
        end = file_range.size if head[:2] in lines.UTF16 else file_range.end
        file_range = replace(file_range, end=end)

    if layout.read:
        return layout.read(file_range, text_field, storage_options)
    if layout.split:
        return layout.split(lines.read_lines(file_range, storage_options), file_range)
    blocks = read_blocks(file_range, storage_options)
    return iter([lines.read_whole(blocks, file_range.url, layout.decoder)])


def _read_zip(file_range: FileRange, storage_options: StorageOptions) -> Iterator[Record]:
    """Yields the records of the members whose headers start in the range."""
    folder, name = open_sized(file_range, storage_options)
    with folder.open(name) as file:
        for member in list_members(file, file_range.size, file_range.url):
            if file_range.start <= member.info.header_offset < file_range.end:
                file_range.count(member.info.compress_size)
                yield from _read_member(member, file_range)


def _read_tar(file_range: FileRange, storage_options: StorageOptions) -> Iterator[Record]:
    """Yields the records of all members. A tar archive is never cut into ranges."""
    blocks = read_blocks(file_range, storage_options)
    for member in iterate_members(blocks, file_range.url):
        yield from _read_member(member, file_range)


def _read_member(member: ZipMember | TarMember, file_range: FileRange) -> Iterator[Record]:
    """Yields the records of a member of an archive.

    Raises:
        ValueError: The member is an archive itself, of a format that cannot be read within an
            archive, or may be one document or many.
    """
    text_format = file_range.format
    where = member.where
    _refuse_nested(where, archive_kind(where))
    head, later_blocks = lines.take_head(member.blocks(), TAIL_BLOCK_BYTES)
    if text_format == "auto":
        text_format = detect_format(where, head)
        if text_format == "text":
            _refuse_sentence_lines(where, head)
    layout = FORMATS[text_format]
    _refuse_nested(where, text_format if layout.read else "")
    blocks = chain([head], later_blocks)
    if layout.split:
        whole = FileRange(where, 0, sys.maxsize, sys.maxsize, text_format)
        records = layout.split(lines.split_file(blocks, where), whole)
    else:
        records = iter([lines.read_whole(blocks, where, layout.decoder)])
    return (replace(record, member=member.name, format=text_format) for record in records)


def _refuse_nested(where: str, kind: str) -> None:
    """Refuses a member that is an archive, or of a format that cannot be read within archives.

    Args:
        where: The member, for the message.
        kind: The kind of archive that the member is, or its format if this cannot be read within
            archives. Empty if the member can be read.

    Raises:
        ValueError: `kind` is not empty.
    """
    if kind:
        found = f"found a {kind} file in an archive, expected text"
        raise ValueError(f"{where}: {found}; unpack the outer archive")


def _refuse_sentence_lines(where: str, head: bytes) -> None:
    """Refuses a member of plain text that may be many documents, with one sentence per line.

    The user then has to give the format. For files that are not in archives, the first lines of all
    files of a source decide together, before the job begins. Members of archives are read during
    the job, one at a time, so they cannot be compared.

    Args:
        where: The member, for the message.
        head: The first bytes of the member.

    Raises:
        ValueError: The first lines look like sentences, with blank lines between documents.
    """
    seen = look_at_lines(lines.head_to_text(head), is_whole=False)
    if seen.is_likely:
        raise ValueError(f"{where}: its beginning has {seen}; {WHICH_FLAG}")
