"""Reads Parquet, and Arrow files as `save_to_disk` of `datasets` writes them: a row is a document.

If a Parquet file has n row groups, group number i, from 0, belongs to the range that holds the byte
i * size // n of the file.

PyArrow is asked only for rows. If a damaged file describes a column wrongly, PyArrow would crash
when asked for the column's position or statistics, and the process would end.
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
_STREAM_START = 8  # the byte of an Arrow file at which its stream begins
_BATCH_ROWS = 64  # few, as every row of a batch may repeat one long value of a dictionary
_MOST_THRIFT = 2**31 - 1
# PyArrow raises these as well for damaged files and for names that are not UTF-8.
OTHER_ERRORS = (OSError, RuntimeError, MemoryError, OverflowError, UnicodeError, IndexError)


@contextmanager
def _opened(file_range: FileRange, options: StorageOptions, kind: str) -> Iterator[BinaryIO]:
    """Opens the file of a range. PyArrow's errors within the context get the name of the file.

    Args:
        file_range: The range.
        options: Options of the filesystem.
        kind: "Parquet" or "Arrow", for messages.

    Raises:
        ValueError: The file is compressed as a whole, as by gzip. Or PyArrow raised an error within
            the context, so the file is broken.
    """
    from pyarrow import ArrowException

    suffix = compression_suffix(file_range.url)
    if suffix:
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
    """Yields a record for every row of the row groups that belong to a range, lazily.

    The `place` of a record is "row N". The first row of the file has the number 1.

    Raises:
        ValueError: The file is broken, or does not have exactly one column `text_field`.
    """
    with _opened(file_range, storage_options, "Parquet") as file:
        table = _open_parquet(file, file_range)
        check_columns(table.schema_arrow.names, text_field, file_range.url)
        chosen: dict[str, Any] = {"columns": [text_field], "batch_size": _BATCH_ROWS}
        for group, first_row in _own_groups(table.metadata, file_range):
            row = first_row
            for batch in table.iter_batches(row_groups=[group], use_threads=False, **chosen):
                # The bytes of a batch are not known: they are taken to be as many as its share of
                # the file's rows.
                file_range.count(file_range.size * batch.num_rows // table.metadata.num_rows)
                yield from _read_column(batch.column(0), row)
                row += batch.num_rows


def _open_parquet(file: BinaryIO, file_range: FileRange) -> Any:
    """Returns the `pyarrow.parquet.ParquetFile` of an open file."""
    from pyarrow.parquet import ParquetFile

    # No list or text in a sound footer is longer than the file. Without these limits a damaged
    # footer could ask for any amount of memory.
    most = max(1, min(file_range.size, _MOST_THRIFT))
    limits = {"thrift_string_size_limit": most, "thrift_container_size_limit": most}
    return ParquetFile(file, pre_buffer=False, **limits)


def _own_groups(metadata: Any, file_range: FileRange) -> list[tuple[int, int]]:
    """Finds the row groups of a Parquet file that belong to a range.

    Args:
        metadata: The metadata of the `ParquetFile`.
        file_range: The range.

    Returns:
        For each of these groups: its number, from 0, and the number of its first row, where the
        first row of the file has the number 1.
    """
    first_row = 1
    groups: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        if file_range.start <= file_range.size * number // metadata.num_row_groups < file_range.end:
            groups.append((number, first_row))
        first_row += metadata.row_group(number).num_rows
    return groups


def read_arrow(
    file_range: FileRange, text_field: str, storage_options: StorageOptions = None
) -> Iterator[Record]:
    """Yields a record for every row of an Arrow file, lazily.

    The `place` of a record is "row N", with numbers from 1. Memory holds one batch of rows at a
    time.

    Most Arrow files are an Arrow stream after their first eight bytes, and are read as a stream.
    Files that Polars writes are not: only their footer says where the batches are. Such a file is
    mapped into memory if it is on a local disk, and otherwise read into memory as a whole.

    Raises:
        ValueError: The file is broken, or does not have exactly one column `text_field`.
    """
    from pyarrow import ArrowInvalid, ipc

    with _opened(file_range, storage_options, "Arrow") as file:
        is_file = file.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        # `ipc.open_file` would read in threads that use the Python file a little longer than this
        # function does, and that end the process with an error if it exits in the meantime.
        position = file.seek(_STREAM_START if is_file else 0)
        options = ipc.IpcReadOptions(use_threads=False)
        try:
            reader = ipc.open_stream(file, options=options)
        except (ArrowInvalid, OSError):  # "Invalid flatbuffers message" is an OSError
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
    """Yields a record for every row of an Arrow file whose batches only its footer can find."""
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
    """Returns the column of a batch that holds the text, after checking its data.

    Raises:
        pyarrow.ArrowInvalid: The data of the column are inconsistent, so the file is damaged.
    """
    column = batch.column(text_field)
    column.validate(full=True)
    return column


def check_columns(names: list[str], text_field: str, url: str) -> None:
    """Refuses a table that does not have exactly one column with the name `text_field`.

    Args:
        names: The names of all columns, or of the fields of JSON objects.
        text_field: The name of the column that holds the text.
        url: The file, for the message.

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
    """Converts a column of any encoding to a plain one with the same values.

    The result has no dictionary, no run-end encoding and no extension type.
    """
    from pyarrow import BaseExtensionType, compute, large_string, types

    if isinstance(column.type, BaseExtensionType):
        column = column.storage
    if types.is_run_end_encoded(column.type):
        column = compute.run_end_decode(column)
    if types.is_dictionary(column.type):
        values = column.dictionary
        if types.is_string_view(values.type):  # pyarrow cannot decode a dictionary of these
            column = type(column).from_arrays(column.indices, values.cast(large_string()))
        column = column.dictionary_decode()
    return column


def _read_column(column: Any, row: int) -> Iterator[Record]:
    """Yields a record for every value of a column.

    If a value is null or not text, its record has an `error`.

    Args:
        column: The values, as an Arrow array.
        row: The number of the row of the first value, from 1.
    """
    from pyarrow import large_binary, types

    column = _plain_column(column)
    kinds_of_text = (types.is_string, types.is_large_string, types.is_string_view)
    is_text = any(is_kind(column.type) for is_kind in kinds_of_text)
    # Text is read as bytes, because it may not be UTF-8. `parse_record` decodes it.
    values = (column.cast(large_binary()) if is_text else column).to_pylist()
    for number, value in enumerate(values, row):
        data = b""
        error = None
        if value is None or not is_text:
            reason = "text_is_null" if value is None else "text_not_a_string"
            found = f"found {type(value).__name__} {str(value)[:40]!r} in the column of text"
            error = BadDocumentError(reason, f"{found}, expected a string")
        elif len(value) > records.MAX_DOCUMENT_BYTES:
            error = too_long()
        else:
            data = value
        yield Record(number, 0, data, error, f"row {number}")


def read_parquet_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the names of the columns of a Parquet file, from its footer."""
    with _opened(file_range, storage_options, "Parquet") as file:
        return list(_open_parquet(file, file_range).schema_arrow.names)


def read_arrow_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the names of the columns of an Arrow stream or file, from its first message.

    The list is empty if a file of Arrow's file format does not hold a stream after its first bytes.
    Its columns are then checked when its rows are read.

    Raises:
        ValueError: The file is neither an Arrow stream nor in Arrow's file format.
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
