"""Parquet: a row is a document, its text a column.

Of n row groups, number i belongs to the range that holds the byte i * size // n of the file. What
the file tells of its sizes is held to its bytes before Arrow takes memory for it
(`pipeline.storage.parquet_footer`).
"""

import io
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, open_sized
from pipeline.documents.format import Format
from pipeline.documents.records import BadDocumentError, Record, too_long
from pipeline.storage.compression import FREE_BYTES, MAX_RATIO
from pipeline.storage.parquet_footer import (
    ColumnChunk,
    DamagedParquetError,
    check_pages,
    dictionary_bytes,
    read_footer,
)

_MAGIC = b"PAR1"
_BATCH_ROWS = 256
_BATCH_BYTES = 512 * 2**20
"""Any value of a dictionary may stand in every row, so fewer rows of a large one are taken at once."""


def read_rows(
    file_range: FileRange, text_field: str, storage_options: StorageOptions = None
) -> Iterator[Record]:
    """A record a row, lazily, some rows at a time; rows are counted from 1 in the whole file.

    Raises:
        ValueError: Not a Parquet file, broken, or without a column of text.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    folder, name = open_sized(file_range, storage_options)
    with folder.open(name) as file:
        try:
            checked = _CheckedFile(file, file_range, text_field)
            table = ParquetFile(checked)
            _check_column(table, text_field, file_range.url)
            for group, first_row in _own_groups(table.metadata, file_range):
                rows = checked.batch_rows(group)
                batches = table.iter_batches(
                    rows, row_groups=[group], columns=[text_field], use_threads=False
                )
                yield from _read_batches(
                    _metered(batches, file_range, table.metadata.num_rows), first_row
                )
        # Some of Arrow's own errors, and names that are no UTF-8, come as other kinds.
        except (
            DamagedParquetError, ArrowException, OSError, RuntimeError, MemoryError, OverflowError, UnicodeError,
        ) as error:  # fmt: skip
            message = f"{file_range.url}: cannot be read as Parquet ({error}); fetch or write the file again"
            raise ValueError(message) from error


def _check_column(table: Any, text_field: str, url: str) -> None:
    names = table.schema_arrow.names
    if text_field not in names:
        raise ValueError(
            f"{url}: found the columns {names}, expected {text_field!r} among them; give the column as --text_field"
        )


class _CheckedFile(io.RawIOBase):
    """A Parquet file whose pages are looked at before Arrow has them: it reads a column of a row group at a time."""

    def __init__(self, file: Any, file_range: FileRange, text_field: str) -> None:
        super().__init__()
        self._file = file
        groups = read_footer(self._read_range, file_range.size)
        chunks = [
            chunk
            for group in groups
            for chunk in group.columns
            if chunk.path[:1] == (text_field.encode(),)
        ]
        self._chunks = {chunk.start: chunk for chunk in chunks}
        self._groups = groups
        self._text_field = text_field.encode()
        _refuse_shared_bytes(chunks)

    def batch_rows(self, group: int) -> int:
        """Rows of a row group to take at once, so that texts out of a dictionary do not take memory without end."""
        chunks = [
            chunk for chunk in self._groups[group].columns if chunk.path[:1] == (self._text_field,)
        ]
        largest = max((dictionary_bytes(self._read_range, chunk) for chunk in chunks), default=0)
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        chunk = self._chunks.get(self.tell())
        data: bytes = self._file.read(size)
        if chunk is not None and len(data) >= chunk.stop - chunk.start:
            check_pages(data, chunk, _most_bytes)
        return data

    def _read_range(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        data: bytes = self._file.read(stop - start)
        return data


def _most_bytes(stored: int) -> int:
    """What so many compressed bytes may become."""
    return FREE_BYTES + MAX_RATIO * stored


def _refuse_shared_bytes(chunks: Sequence[ColumnChunk]) -> None:
    for one, other in pairwise(sorted(chunks, key=lambda chunk: chunk.start)):
        if other.start < one.stop and other.stop > other.start:
            raise DamagedParquetError(
                f"row groups share the bytes {other.start}-{one.stop}: a decompression bomb"
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


PARQUET = Format(
    lambda text, *_: text,
    lambda beginning: beginning.suffix == ".parquet" or beginning.head.startswith(_MAGIC),
    read=read_rows,
    is_text=False,
)
