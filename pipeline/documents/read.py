"""Reads the documents of a part of the input, one after the other."""

from collections.abc import Iterator, MutableMapping

from pipeline.documents import Document, DroppedDocument, add_example
from pipeline.documents.files import FileRange, StorageOptions
from pipeline.documents.formats import format_of, parse_record
from pipeline.documents.lines import count_line_ends
from pipeline.documents.parts import Part
from pipeline.documents.ranges import read_records
from pipeline.documents.records import BadDocumentError, Record

ON_BAD_DOCUMENT = ("stop", "skip", "keep")
_HINT = "repair it, or give --on_bad_document skip to count and skip such documents"


def read_part(
    part: Part,
    *,
    text_field: str = "text",
    on_bad_document: str = "stop",
    skipped: MutableMapping[str, int] | None = None,
    storage_options: StorageOptions = None,
    examples: list[DroppedDocument] | None = None,
    without_text: list[str] | None = None,
) -> Iterator[Document]:
    """Yields the documents of a part in the order of its files, lazily.

    Memory holds one document at a time.

    Args:
        part: The part.
        text_field: The name of the field or column that holds the text, if the format has such.
        on_bad_document: What to do with a malformed document, one of `ON_BAD_DOCUMENT`.
        skipped: Counts by reason the documents that are not yielded, as the stream is read.
        storage_options: Options of the filesystem.
        examples: A list to which some malformed documents are appended as the stream is read: their
            beginnings, or all of them as a whole if `on_bad_document` is "keep".
        without_text: A list to which the URL of every range without any text is appended.

    Raises:
        ValueError: A document is malformed and `on_bad_document` is "stop", or a file is broken.
            The message names file and line.
    """
    if on_bad_document not in ON_BAD_DOCUMENT:
        expected = ", ".join(ON_BAD_DOCUMENT)
        raise ValueError(f"on_bad_document is {on_bad_document!r}, expected one of {expected}")
    counts = {} if skipped is None else skipped
    for file_range in part.ranges:
        has_text = False
        for record in read_records(file_range, text_field, storage_options):
            reason = record.dropped
            try:
                text = "" if reason else parse_record(record, file_range, text_field)
            except BadDocumentError as error:
                if on_bad_document == "stop":
                    place = _find_fault(file_range, record, error.line, storage_options)
                    raise ValueError(f"{place}: {error}; {_HINT}") from error
                reason = error.reason
                where = f"{_describe_place(file_range, record)}: {error}"
                if examples is not None:
                    text = record.data.decode(errors="replace")
                    add_example(examples, reason, where, text, on_bad_document == "keep")
            if reason:
                counts[reason] = counts.get(reason, 0) + 1
                continue
            has_text = has_text or bool(text.strip())
            is_split = format_of(record, file_range).has_sentence_lines
            yield Document(text, _describe_place(file_range, record), is_split)
        if not has_text and without_text is not None:
            without_text.append(file_range.url)


def _describe_place(file_range: FileRange, record: Record) -> str:
    """Returns the place of a document for messages: "FILE:LINE", "FILE, byte OFFSET" or similar."""
    if file_range.start and not (record.member or record.place):
        # To know the number of the line, all earlier bytes of the file would have to be read.
        return f"{file_range.url}, byte {record.offset}"
    is_whole = not record.place and format_of(record, file_range).is_whole
    return _name_line(file_range, record, "" if is_whole else f":{record.number}")


def _name_line(file_range: FileRange, record: Record, line: str) -> str:
    """Returns file and member followed by `line`, or file and place if the record has a place."""
    if record.place:
        return f"{file_range.url}, {record.place}"
    return f"{file_range.url}{record.member and f'/{record.member}'}{line}"


def _find_fault(
    file_range: FileRange, record: Record, line: int, storage_options: StorageOptions
) -> str:
    """Returns the place of a fault as "FILE:LINE" or "FILE, PLACE".

    The file is read up to the record if only that can tell the number of the line.

    Args:
        file_range: The range that was read.
        record: The malformed document.
        line: The line at fault, counted from 0 at the first line of the record.
        storage_options: Options of the filesystem.
    """
    first = record.number
    if file_range.start and not (record.member or record.place):
        first = count_line_ends(file_range, record.offset, storage_options) + 1
    return _name_line(file_range, record, f":{first + line}")
