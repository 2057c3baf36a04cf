"""Arrow files, as `save_to_disk` of Hugging Face's datasets writes them: a row is a document, its text a column."""

from collections.abc import Iterator
from typing import BinaryIO

from pipeline.documents.files import FileRange, StorageOptions, open_sized
from pipeline.documents.format import Format
from pipeline.documents.parquet import check_column, read_batches
from pipeline.documents.records import Record

_FILE_MAGIC = b"ARROW1"  # begins and ends a file
_STREAM_START = 8


def read_rows(
    file_range: FileRange, text_field: str, storage_options: StorageOptions = None
) -> Iterator[Record]:
    """A record a row from row 1 on, a batch at a time; raises ValueError where the file or the column is not there."""
    import pyarrow as pa

    folder, name = open_sized(file_range, storage_options)
    with folder.open(name) as file:
        try:
            is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            # A file is a stream behind eight bytes. Arrow's own reader of files reads in threads that
            # hold the Python file for some time more, and die with the process where it ends then.
            file.seek(_STREAM_START if is_file else 0)
            options = pa.ipc.IpcReadOptions(use_threads=False)
            reader = pa.ipc.open_stream(file, options=options)
            check_column(reader.schema.names, text_field, file_range.url)
            row, position = 1, 0
            for batch in reader:
                column = batch.select([text_field])
                column.validate(full=True)
                yield from read_batches(iter([column]), row)
                row += batch.num_rows
                if file_range.meter:
                    file_range.meter.num_bytes += file.tell() - position
                    position = file.tell()
            if is_file:
                _check_end(file, file_range.size)
        except (pa.ArrowException, OSError) as error:
            message = f"{file_range.url}: cannot be read as Arrow ({error}); fetch or write the file again"
            raise ValueError(message) from error


def _check_end(file: BinaryIO, size: int) -> None:
    file.seek(size - len(_FILE_MAGIC))
    if file.read() != _FILE_MAGIC:
        raise OSError("its end is missing")


ARROW = Format(
    lambda text, *_: text,
    lambda beginning: beginning.suffix == ".arrow" or beginning.head.startswith(_FILE_MAGIC),
    read=read_rows,
    is_text=False,
    may_be_cut=False,
)
