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
        skipped: A mapping in which the documents that are not yielded are counted by reason, such
            as "redirect". The counts grow while the documents are read.
        storage_options: Options of the filesystem.
        examples: A list to which the beginnings of some malformed documents are appended while the
            documents are read. If `on_bad_document` is "keep", every malformed document is
            appended, with its whole text.
        without_text: A list to which the URL of a file is appended for each of its ranges in which
            no document has text.

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
    """Returns the place of a document, for messages and for reports.

    It is "FILE:LINE", or "FILE, byte OFFSET" for lines of a range that begins within the file. It
    is "FILE" if the file is one document, and "FILE, row 7" or similar if the record has a `place`.
    FILE is ARCHIVE/MEMBER in an archive.
    """
    if file_range.start and not (record.member or record.place):
        # To know the number of the line, all earlier bytes of the file would have to be read.
        return f"{file_range.url}, byte {record.offset}"
    is_whole = not record.place and format_of(record, file_range).is_whole
    return _name_line(file_range, record, "" if is_whole else f":{record.number}")


def _name_line(file_range: FileRange, record: Record, line: str) -> str:
    """Returns "FILE, PLACE" if the record has a `place`, and otherwise the file followed by a line.

    Args:
        file_range: The range that was read.
        record: A record of the range. If it is from an archive, its member follows the file.
        line: The line with a colon before it, such as ":7", or an empty text.
    """
    if record.place:
        return f"{file_range.url}, {record.place}"
    return f"{file_range.url}{record.member and f'/{record.member}'}{line}"


def _find_fault(
    file_range: FileRange, record: Record, line: int, storage_options: StorageOptions
) -> str:
    """Returns the place of a fault in a document as "FILE:LINE" or "FILE, PLACE".

    If the range begins within a file of lines, the file is read from its start to the document, to
    count the lines.

    Args:
        file_range: The range that was read.
        record: The malformed document.
        line: The number of the faulty line, from 0 at the first line of the document.
        storage_options: Options of the filesystem.
    """
    first = record.number
    if file_range.start and not (record.member or record.place):
        first = count_line_ends(file_range, record.offset, storage_options) + 1
    return _name_line(file_range, record, f":{first + line}")
