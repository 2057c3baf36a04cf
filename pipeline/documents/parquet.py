"""Parquet: a row is a document, its text a column. May import: stdlib, pipeline.documents; pyarrow inside functions.

Of n row groups, number i belongs to the range that holds the byte i * size // n of the file. Their true offsets stay
unread: Arrow ends the process, by an exception that Python cannot catch, where a column's description is broken.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, open_sized
from pipeline.documents.records import BadDocumentError, Record, too_long
from pipeline.shards.ranged_file import open_ranged

MAGIC = b"PAR1"
_BATCH_ROWS = 256


def read_rows(file_range: FileRange, text_field: str, storage_options: StorageOptions = None) -> Iterator[Record]:
    """A record a row, lazily, some rows at a time; rows are counted from 1 in the whole file.

    Raises:
        ValueError: Not a Parquet file, broken, or without a column of text.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    filesystem, path = open_sized(file_range, storage_options)
    with open_ranged(filesystem, path) as file:
        try:
            table = ParquetFile(file)
            _check_column(table, text_field, file_range.url)
            for group, first_row in _own_groups(table.metadata, file_range):
                batches = table.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[text_field], use_threads=False)
                yield from _read_batches(batches, first_row)
        # Some of Arrow's own errors, and names that are no UTF-8, come as other kinds.
        except (ArrowException, OSError, RuntimeError, MemoryError, OverflowError, UnicodeError) as error:
            message = f"{file_range.url}: cannot be read as Parquet ({error}); fetch or write the file again"
            raise ValueError(message) from error


def _check_column(table: Any, text_field: str, url: str) -> None:
    names = table.schema_arrow.names
    if text_field not in names:
        raise ValueError(
            f"{url}: found the columns {names}, expected {text_field!r} among them; give the column as --text_field"
        )


def _own_groups(metadata: Any, file_range: FileRange) -> Iterator[tuple[int, int]]:
    """Number and first row, from 1, of every row group of the range."""
    row = 1
    for number in range(metadata.num_row_groups):
        if file_range.start <= file_range.size * number // metadata.num_row_groups < file_range.end:
            yield number, row
        row += metadata.row_group(number).num_rows


def _read_batches(batches: Iterator[Any], row: int) -> Iterator[Record]:
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
