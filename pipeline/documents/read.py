"""A part of the input to its documents, as a stream."""

from collections.abc import Iterator, MutableMapping

from pipeline.documents import Document, DroppedDocument, add_example
from pipeline.documents.files import FileRange, StorageOptions
from pipeline.documents.formats import format_of, parse_record, read_records
from pipeline.documents.lines import count_line_ends
from pipeline.documents.parts import Part
from pipeline.documents.records import BadDocumentError, Record

ON_BAD_DOCUMENT = ("stop", "skip")


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
    """Yields a part's documents in the order of its files; memory is that of the longest document.

    Args:
        part: What to read.
        text_field: Field of a JSONL object that holds the text.
        on_bad_document: stop with an error at a malformed document, or skip it.
        skipped: Counts skipped documents by reason, while the stream is read.
        storage_options: Options of the input's filesystem.
        examples: Takes a few of the skipped documents, while the stream is read.
        without_text: Takes the URL of every range that gives no text, while the stream is read.

    Raises:
        ValueError: A malformed document, named by file and line; a file that changed or is broken,
            also when skipping.
    """
    if on_bad_document not in ON_BAD_DOCUMENT:
        raise ValueError(
            f"on_bad_document is {on_bad_document!r}, expected one of {', '.join(ON_BAD_DOCUMENT)}"
        )
    counts = {} if skipped is None else skipped
    kept = [] if examples is None else examples
    silent = [] if without_text is None else without_text
    return (
        document
        for file_range in part.ranges
        for document in _note_silence(
            _read_range(file_range, text_field, on_bad_document, counts, storage_options, kept),
            file_range,
            silent,
        )
    )


def _note_silence(
    documents: Iterator[Document], file_range: FileRange, without_text: list[str]
) -> Iterator[Document]:
    """The documents as they come; at their end notes whether all of them were blank."""
    has_text = False
    for document in documents:
        has_text = has_text or not (document.text == "" or document.text.isspace())
        yield document
    if not has_text:
        without_text.append(file_range.url)


def _read_range(
    file_range: FileRange,
    text_field: str,
    on_bad_document: str,
    skipped: MutableMapping[str, int],
    storage_options: StorageOptions,
    examples: list[DroppedDocument],
) -> Iterator[Document]:
    for record in read_records(file_range, text_field, storage_options):
        if record.dropped:
            skipped[record.dropped] = skipped.get(record.dropped, 0) + 1
            continue
        try:
            text = parse_record(record, file_range, text_field)
        except BadDocumentError as error:
            if on_bad_document == "stop":
                place = _find_fault(file_range, record, error.line, storage_options)
                hint = "repair it, or give --on_bad_document skip to count and skip such documents"
                raise ValueError(f"{place}: {error}; {hint}") from error
            skipped[error.reason] = skipped.get(error.reason, 0) + 1
            text = record.data[:1000].decode(errors="replace")
            add_example(
                examples, error.reason, f"{_describe_place(file_range, record)}: {error}", text
            )
        else:
            is_split = format_of(record, file_range).has_sentence_lines
            yield Document(text, _describe_place(file_range, record), is_split)


def _describe_place(file_range: FileRange, record: Record) -> str:
    if record.place:
        return f"{file_range.url}, {record.place}"
    url = f"{file_range.url}/{record.member}" if record.member else file_range.url
    if format_of(record, file_range).is_whole:
        return url
    if file_range.start and not record.member:  # counting lines would need all bytes before
        return f"{file_range.url}, byte {record.offset}"
    return f"{url}:{record.number}"


def _find_fault(
    file_range: FileRange, record: Record, line: int, storage_options: StorageOptions
) -> str:
    """FILE:LINE or FILE, PLACE of what is wrong; `line` counts from the record's first."""
    if record.place:
        return f"{file_range.url}, {record.place}"
    if record.member:
        return f"{file_range.url}/{record.member}:{record.number + line}"
    if file_range.start:
        return f"{file_range.url}:{count_line_ends(file_range, record.offset, storage_options) + 1 + line}"
    return f"{file_range.url}:{record.number + line}"
