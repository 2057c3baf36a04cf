"""Describes how the files of a source are read, and checks them, before any work begins."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from pipeline.documents.delimited import read_beginning
from pipeline.documents.files import FileRange, StorageOptions, read_head
from pipeline.documents.formats import FORMATS, parse_record
from pipeline.documents.lines import UTF16, head_to_text, read_whole
from pipeline.documents.parts import Part
from pipeline.documents.read import read_part
from pipeline.documents.records import BadDocumentError, Record
from pipeline.documents.tables import check_columns
from pipeline.storage.ahead import map_ahead
from pipeline.storage.archives import archive_kind
from pipeline.storage.compression import compression_suffix
from pipeline.storage.secret_values import show

NameReader = Callable[[FileRange, StorageOptions], list[str]]

DEFAULT_FIELD = "text"
"""The name of the field or column that holds the text, unless a user gives another."""
_NUM_FILES_LOOKED_AT = 64  # of each format
_NUM_DOCUMENTS = 50  # of the example file, that are searched for escapes
_SHOWN_CHARACTERS = 70
_MOST_PARSED_BYTES = 2**20  # of an example file that is one document
_MUCH_ESCAPED = 0.1  # the share of documents with escapes that is worth a note
_ESCAPED = re.compile("&(?:amp|lt|gt|quot|nbsp|#[0-9]+|#x[0-9a-fA-F]+);")


def check_text_field(
    parts: Sequence[Part],
    text_field: str,
    storage_options: StorageOptions = None,
    *,
    counts_bad_lines: bool = False,
) -> None:
    """Refuses a source if a file does not have the field or column that should hold the text.

    At most 64 files of each format are checked. Files in archives are not.

    Args:
        parts: The parts of one source.
        text_field: The name of the field or column that holds the text.
        storage_options: Options of the files' filesystem.
        counts_bad_lines: Whether the build counts JSON lines without the field and leaves them out.
            If so, files of JSON lines are not checked here.

    Raises:
        ValueError: A file does not have exactly one field of this name. Or the user has named a
            field, but the files of the source have formats without fields.
    """
    by_format: dict[str, dict[str, FileRange]] = {}
    for part in parts:
        for file_range in part.ranges:
            if file_range.size:
                by_format.setdefault(file_range.format, {})[file_range.url] = file_range
    named = [name for name in by_format if name in FORMATS and FORMATS[name].names]
    if text_field != DEFAULT_FIELD and by_format and not named and "auto" not in by_format:
        found = f"no file of its source has fields: they are read as {', '.join(sorted(by_format))}"
        cure = "leave --text_field out, or give the --format that the files have"
        raise ValueError(f"text_field is {text_field!r}, but {found}; {cure}")

    for name in named:
        is_table = name in ("csv", "parquet", "arrow")
        if counts_bad_lines and not is_table:
            continue
        ranges = [r for r in by_format[name].values() if not archive_kind(r.url)]
        chosen = ranges[:: max(1, -(-len(ranges) // _NUM_FILES_LOOKED_AT))]
        read_names = FORMATS[name].names
        assert read_names, f"{name} has names"
        read = partial(_call, read_names, storage_options)
        found_names = map_ahead(read, chosen)
        for file_range, names in zip(chosen, found_names, strict=True):
            if names:
                check_columns(names, text_field, file_range.url)


def _call(read_names: NameReader, options: StorageOptions, file_range: FileRange) -> list[str]:
    """Calls `read_names` for a file, and returns the names of its fields.

    The file is the last argument, so that `functools.partial` can fix the two others.

    Args:
        read_names: The attribute `names` of a format.
        options: Options of the file's filesystem.
        file_range: A range of the file.
    """
    return read_names(file_range, options)


def describe_readings(
    parts: Sequence[Part], text_field: str, storage_options: StorageOptions = None
) -> list[str]:
    """Returns lines that say how the files of one source are read, and how a document begins.

    There is one line for each combination of format, compression and archive. It shows one file as
    an example.

    Args:
        parts: The parts of one source.
        text_field: The name of the field or column that holds the text.
        storage_options: Options of the files' filesystem.
    """
    groups: dict[tuple[str, str, str], dict[str, FileRange]] = {}
    for part in parts:
        for file_range in part.ranges:
            if file_range.size:
                url = file_range.url
                key = (archive_kind(url), file_range.format, compression_suffix(url))
                groups.setdefault(key, {}).setdefault(url, file_range)
    return [
        _describe_group(key, list(files.values()), text_field, storage_options)
        for key, files in sorted(groups.items())
    ]


def _describe_group(
    key: tuple[str, str, str],
    files: Sequence[FileRange],
    text_field: str,
    storage_options: StorageOptions,
) -> str:
    """Returns the line about files that are read in the same way.

    Args:
        key: The kind of archive, such as "zip"; the name of the format; and the extension of the
            compression, such as ".gz". The first or the last is empty if there is none.
        files: One range of each file. The first one is shown as an example.
        text_field: The name of the field or column that holds the text.
        storage_options: Options of the files' filesystem.
    """
    archive, text_format, compression = key
    first = files[0]
    notes: list[str] = []
    if text_format == "csv" and not archive:
        notes.append(read_beginning(first, storage_options)[0].describe())
    if not archive and FORMATS[text_format].names:
        notes.append(f"the text in {text_field!r}")
    head = b"" if archive else read_head(first.url, first.size, storage_options)
    if not archive and FORMATS[text_format].is_text and head[:2] in UTF16:
        notes.append("UTF-16")
    if compression:
        notes.append(f"compressed as {compression}")

    kind = f"a {archive} of files, each by its own name" if archive else text_format
    texts = _begin_texts(first, text_field, storage_options)
    beginning = " ".join(texts[0].split())[:_SHOWN_CHARACTERS] if texts else ""
    line = f"{len(files):,} file(s) read as {kind}"
    line += f" ({'; '.join(notes)})" if notes else ""
    line += f", such as {show(first.url)}"
    if texts is None:
        line += f", whose text is not shown: it has more than {_MOST_PARSED_BYTES:,} bytes"
        return line
    line += f", which begins {beginning!r}" if beginning else ""

    num_escaped = sum(_ESCAPED.search(text) is not None for text in texts)
    if num_escaped > _MUCH_ESCAPED * len(texts):
        line += (
            f"; {num_escaped} of its first {len(texts)} documents hold escapes of HTML such as"
            " &amp;, which are read as they stand: unescape them before if that is not wanted"
        )
    return line


def _begin_texts(
    file_range: FileRange, text_field: str, storage_options: StorageOptions
) -> list[str] | None:
    """Reads the texts of the first documents of a file or an archive, as the build will read them.

    At most 50 documents are read. Malformed ones are left out. A file of plain text that is one
    document is read only at its beginning.

    Args:
        file_range: A range of the file or of the archive.
        text_field: The name of the field or column that holds the text.
        storage_options: Options of the file's filesystem.

    Returns:
        The texts. None if the whole file is one document in another format than plain text, such
        as HTML, and has more than 1 MiB.
    """
    url = file_range.url
    if archive_kind(url) or not FORMATS[file_range.format].is_whole:
        documents = read_part(
            Part((replace(file_range, meter=None),)),
            text_field=text_field,
            on_bad_document="skip",
            storage_options=storage_options,
        )
        return [document.text for document in islice(documents, _NUM_DOCUMENTS)]

    if file_range.format == "text":
        head = read_head(url, file_range.size, storage_options)
        record = Record(1, 0, head_to_text(head).encode(errors="replace"))
    else:
        data = read_head(url, file_range.size, storage_options, _MOST_PARSED_BYTES + 1)
        if len(data) > _MOST_PARSED_BYTES:
            return None
        record = read_whole([data], url, FORMATS[file_range.format].decoder)
    try:
        return [parse_record(record, file_range, text_field)]
    except BadDocumentError:
        return []
