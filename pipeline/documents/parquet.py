"""Parquet: a row is a document, its text a column.

Of n row groups, number i belongs to the range that holds the byte i * size // n of the file. Arrow
is asked for rows alone: where a column is described wrongly, asking for its place or statistics
ends the process.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, open_sized
from pipeline.documents.format import Format
from pipeline.documents.records import BadDocumentError, Record, too_long

_MAGIC = b"PAR1"
_BATCH_ROWS = 64  # a long value of a dictionary may stand in every row
_MOST_THRIFT = 2**31 - 1
# Some of Arrow's own errors, and names that are no UTF-8, come as other kinds.
_ARROWS_OTHER_ERRORS = (OSError, RuntimeError, MemoryError, OverflowError, UnicodeError, IndexError)


def read_rows(
    file_range: FileRange, text_field: str, storage_options: StorageOptions = None
) -> Iterator[Record]:
    """A record a row, some rows at a time, counted from 1 in the whole file; raises ValueError as `arrow.read_rows`."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    folder, name = open_sized(file_range, storage_options)
    with folder.open(name) as file:
        try:
            # A footer tells of no list or text that is longer than the file.
            most = max(1, min(file_range.size, _MOST_THRIFT))
            limits = {"thrift_string_size_limit": most, "thrift_container_size_limit": most}
            table = ParquetFile(file, pre_buffer=False, **limits)
            check_column(table.schema_arrow.names, text_field, file_range.url)
            for group, first_row in _own_groups(table.metadata, file_range):
                batches = table.iter_batches(
                    _BATCH_ROWS, row_groups=[group], columns=[text_field], use_threads=False
                )
                metered = _metered(batches, file_range, max(1, table.metadata.num_rows))
                yield from read_batches(metered, first_row)
        except (ArrowException, *_ARROWS_OTHER_ERRORS) as error:
            message = f"{file_range.url}: cannot be read as Parquet ({error}); fetch or write the file again"
            raise ValueError(message) from error


def check_column(names: Sequence[str], text_field: str, url: str) -> None:
    """Raises ValueError where a table has no column of this name."""
    if text_field not in names:
        raise ValueError(
            f"{url}: found the columns {list(names)}, expected {text_field!r} among them; give the column as --text_field"
        )


def _own_groups(metadata: Any, file_range: FileRange) -> Iterator[tuple[int, int]]:
    """Number and first row, from 1, of every row group of the range."""
    row = 1
    for number in range(metadata.num_row_groups):
        if file_range.start <= file_range.size * number // metadata.num_row_groups < file_range.end:
            yield number, row
        row += metadata.row_group(number).num_rows


def _metered(batches: Iterator[Any], file_range: FileRange, num_rows: int) -> Iterator[Any]:
    """The batches; each counts as the share of the file's bytes that its rows are of the file's rows."""
    for batch in batches:
        if file_range.meter:
            file_range.meter.num_bytes += file_range.size * batch.num_rows // num_rows
        yield batch


def read_batches(batches: Iterator[Any], row: int) -> Iterator[Record]:
    """A record for each row of batches of one column; the first is row number `row`."""
    from pyarrow import large_binary, types

    for batch in batches:
        column = batch.column(0)
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        is_text = types.is_string(column.type) or types.is_large_string(column.type)
        # Text is taken as the bytes it is stored as, which may be no UTF-8.
        for value in (column.cast(large_binary()) if is_text else column).to_pylist():
            yield _make_record(value, is_text, row)
            row += 1


def _make_record(value: Any, is_text: bool, row: int) -> Record:
    place = f"row {row}"
    if value is None or not is_text:
        reason = "text_is_null" if value is None else "text_not_a_string"
        message = f"found {type(value).__name__} {str(value)[:40]!r} in the column of text, expected a string"
        return Record(row, 0, b"", BadDocumentError(reason, message), place)
    if len(value) > records.MAX_DOCUMENT_BYTES:
        return Record(row, 0, b"", too_long(), place)
    return Record(row, 0, value, None, place)


PARQUET = Format(
    lambda text, *_: text,
    lambda beginning: beginning.suffix == ".parquet" or beginning.head.startswith(_MAGIC),
    read=read_rows,
    is_text=False,
)
