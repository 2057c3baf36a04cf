"""Parquet, and Arrow files as datasets' `save_to_disk` writes them: a row is a document.

Of n row groups of a Parquet file, number i belongs to the range that holds the byte i * size // n.
Arrow is asked for rows alone: where a column is described wrongly, asking for its place or
statistics ends the process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, open_sized
from pipeline.documents.kinds import looks_like_text
from pipeline.documents.records import BadDocumentError, Format, Record, too_long
from pipeline.storage.compression import compression_suffix
from pipeline.storage.quoting import join_names

_PARQUET_MAGIC = b"PAR1"
_ARROW_MAGIC = b"ARROW1"  # begins and ends a file
_ARROW_SUFFIXES = {".arrow", ".arrows", ".feather", ".ipc"}
_STREAM_START = 8
_BATCH_ROWS = 64  # a long value of a dictionary may stand in every row
_MOST_THRIFT = 2**31 - 1
# Some of Arrow's own errors, and names that are no UTF-8, come as other kinds.
OTHER_ERRORS = (OSError, RuntimeError, MemoryError, OverflowError, UnicodeError, IndexError)


@contextmanager
def _opened(file_range: FileRange, options: StorageOptions, kind: str) -> Iterator[BinaryIO]:
    """The file of a range; a ValueError says what it is said to be where it is damaged."""
    from pyarrow import ArrowException

    if suffix := compression_suffix(file_range.url):
        found = f"found {kind} that is compressed as {suffix}, expected {kind} itself"
        raise ValueError(f"{file_range.url}: {found}; decompress the file")
    folder, name = open_sized(file_range, options)
    with folder.open(name) as file:
        try:
            yield file
        except (ArrowException, *OTHER_ERRORS) as error:
            message = f"cannot be read as {kind} ({error}); fetch or write the file again"
            raise ValueError(f"{file_range.url}: {message}") from error


def read_parquet(
    file_range: FileRange, text_field: str, storage_options: StorageOptions = None
) -> Iterator[Record]:
    """A record a row, some rows at a time, counted from 1 in the whole file."""
    with _opened(file_range, storage_options, "Parquet") as file:
        table = _open_parquet(file, file_range)
        check_columns(table.schema_arrow.names, text_field, file_range.url)
        chosen: dict[str, Any] = {"columns": [text_field], "batch_size": _BATCH_ROWS}
        for group, first_row in _own_groups(table.metadata, file_range):
            row = first_row
            for batch in table.iter_batches(row_groups=[group], use_threads=False, **chosen):
                # Counted as the share of the file's bytes that its rows are of the file's rows.
                file_range.count(file_range.size * batch.num_rows // table.metadata.num_rows)
                yield from _read_column(batch.column(0), row)
                row += batch.num_rows


def _open_parquet(file: BinaryIO, file_range: FileRange) -> Any:
    from pyarrow.parquet import ParquetFile

    # A footer tells of no list or text that is longer than the file.
    most = max(1, min(file_range.size, _MOST_THRIFT))
    limits = {"thrift_string_size_limit": most, "thrift_container_size_limit": most}
    return ParquetFile(file, pre_buffer=False, **limits)


def _own_groups(metadata: Any, file_range: FileRange) -> list[tuple[int, int]]:
    """Number and first row, from 1, of every row group of the range."""
    row, found = 1, []
    for number in range(metadata.num_row_groups):
        if file_range.start <= file_range.size * number // metadata.num_row_groups < file_range.end:
            found.append((number, row))
        row += metadata.row_group(number).num_rows
    return found


def read_arrow(
    file_range: FileRange, text_field: str, storage_options: StorageOptions = None
) -> Iterator[Record]:
    """Yields a record for every row, numbered from 1; memory holds one batch at a time.

    An Arrow file is normally an Arrow stream after eight bytes, and is read as a stream. Polars
    writes files that are not: their footer says where the batches are. Such a file is mapped from a
    local disk, and held in memory if it is on a store.
    """
    from pyarrow import ArrowInvalid, ipc

    with _opened(file_range, storage_options, "Arrow") as file:
        is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        # Arrow's own reader of files reads in threads that hold the Python file for some time more,
        # and die with the process where it ends then.
        position = file.seek(_STREAM_START if is_file else 0)
        options = ipc.IpcReadOptions(use_threads=False)
        try:
            reader = ipc.open_stream(file, options=options)
        except (ArrowInvalid, OSError):  # "Invalid flatbuffers message" comes as the latter
            if not is_file:
                raise
            yield from _read_by_footer(file_range, text_field, storage_options)
            return
        check_columns(reader.schema.names, text_field, file_range.url)
        row = 1
        for batch in reader:
            yield from _read_column(_valid_column(batch, text_field), row)
            row += batch.num_rows
            file_range.count(file.tell() - position)
            position = file.tell()
        file.seek(file_range.size - len(_ARROW_MAGIC))
        if is_file and file.read() != _ARROW_MAGIC:
            raise OSError("its end is missing")


def _read_by_footer(
    file_range: FileRange, text_field: str, storage_options: StorageOptions
) -> Iterator[Record]:
    """Yields a record for every row of an Arrow file that can be read by its footer alone."""
    import pyarrow as pa
    from pyarrow import ipc

    folder, name = open_sized(file_range, storage_options)
    if folder.is_local:
        source = pa.memory_map(str(folder.local_path(name)))
    else:
        source = pa.BufferReader(folder.read(name))
    with source:
        reader = ipc.open_file(source, options=ipc.IpcReadOptions(use_threads=False))
        check_columns(reader.schema.names, text_field, file_range.url)
        row = 1
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            file_range.count(file_range.size // reader.num_record_batches)
            yield from _read_column(_valid_column(batch, text_field), row)
            row += batch.num_rows


def _valid_column(batch: Any, text_field: str) -> Any:
    column = batch.column(text_field)
    column.validate(full=True)
    return column


def check_columns(names: list[str], text_field: str, url: str) -> None:
    """Refuses a table that does not have exactly one column of this name.

    Raises:
        ValueError: No column has the name, or several have it.
    """
    if text_field not in names:
        expected = f"expected {text_field!r} among them; give the column as --text_field"
        raise ValueError(f"{url}: found the columns [{join_names(map(repr, names))}], {expected}")
    if names.count(text_field) > 1:
        found = f"found {names.count(text_field)} columns named {text_field!r}"
        raise ValueError(f"{url}: {found}, expected one; rename the others")


def _plain_column(column: Any) -> Any:
    """Returns a column with its values stored plainly: no dictionary, run-end or extension type."""
    from pyarrow import BaseExtensionType, compute, large_string, types

    if isinstance(column.type, BaseExtensionType):
        column = column.storage
    if types.is_run_end_encoded(column.type):
        column = compute.run_end_decode(column)
    if types.is_dictionary(column.type):
        values = column.dictionary
        if types.is_string_view(values.type):  # which pyarrow cannot take by number
            column = type(column).from_arrays(column.indices, values.cast(large_string()))
        column = column.dictionary_decode()
    return column


def _read_column(column: Any, row: int) -> Iterator[Record]:
    """Yields a record for every value; `row` is the number of the first value's row."""
    from pyarrow import large_binary, types

    column = _plain_column(column)
    kinds_of_text = (types.is_string, types.is_large_string, types.is_string_view)
    is_text = any(is_kind(column.type) for is_kind in kinds_of_text)
    # Text is taken as the bytes it is stored as, which may be no UTF-8.
    values = (column.cast(large_binary()) if is_text else column).to_pylist()
    for number, value in enumerate(values, row):
        place, data, error = f"row {number}", b"", None
        if value is None or not is_text:
            reason = "text_is_null" if value is None else "text_not_a_string"
            found = f"found {type(value).__name__} {str(value)[:40]!r} in the column of text"
            error = BadDocumentError(reason, f"{found}, expected a string")
        elif len(value) > records.MAX_DOCUMENT_BYTES:
            error = too_long()
        else:
            data = value
        yield Record(number, 0, data, error, place)


def read_parquet_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the names of a file's columns, which its footer holds."""
    with _opened(file_range, storage_options, "Parquet") as file:
        return list(_open_parquet(file, file_range).schema_arrow.names)


def read_arrow_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the names of a file's columns, which its first message holds.

    The list is empty if only the footer has them; they are then checked when the rows are read.
    """
    from pyarrow import ArrowInvalid, ipc

    with _opened(file_range, storage_options, "Arrow") as file:
        is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        file.seek(_STREAM_START if is_file else 0)
        try:
            return list(ipc.open_stream(file).schema.names)
        except (ArrowInvalid, OSError):
            if not is_file:
                raise
            return []


PARQUET = Format(
    lambda text, *_: text,
    lambda beginning: (
        beginning.suffix == ".parquet"
        or (beginning.head.startswith(_PARQUET_MAGIC) and not looks_like_text(beginning.head))
    ),
    read=read_parquet,
    names=read_parquet_names,
    is_text=False,
)
ARROW = Format(
    lambda text, *_: text,
    lambda beginning: (
        beginning.suffix in _ARROW_SUFFIXES or beginning.head.startswith(_ARROW_MAGIC + b"\0")
    ),
    read=read_arrow,
    names=read_arrow_names,
    is_text=False,
    may_be_cut=False,
)
