"""Reads the texts of task files, such as a benchmark's test set, each with its place in the file.

In JSON, JSON lines, Parquet and Arrow a text is a string, at any depth. In CSV it is a cell. In
other files it is a line, or a cell of a line with tabs.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from pipeline.documents.detect import detect_format
from pipeline.documents.files import StorageOptions, read_blocks, read_head
from pipeline.documents.parts import find_inputs
from pipeline.documents.tables import OTHER_ERRORS
from pipeline.documents.text_files import (
    parse_json,
    read_csv_rows,
    read_text,
    read_text_lines,
    whole_file,
)
from pipeline.storage.archives import is_archive
from pipeline.storage.compression import plain_suffix

_JSON = {".json", ".jsonl", ".ndjson"}
_ARROW_FILE = b"ARROW1"
_LINES = {"text", "lines", "wikiextractor", "sentence-lines", "text-blank-lines"}


def read_task_texts(
    patterns: Sequence[str], storage_options: StorageOptions = None
) -> Iterator[tuple[str, str]]:
    """Yields every text of the task files with its place, lazily.

    A place such as "FILE:7" says where in its file a text is, for messages. The files are read in
    the order of their URLs.

    Args:
        patterns: Paths, folders and globs of the files, at any fsspec URL.
        storage_options: Options of the filesystem.

    Yields:
        The place and the text.

    Raises:
        FileNotFoundError: A pattern matches no file.
        ValueError: A file is broken, or of a format in which texts cannot be found.
    """
    for _, texts in read_task_files(patterns, storage_options):
        yield from texts


def read_task_files(
    patterns: Sequence[str], storage_options: StorageOptions = None
) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    """Yields the URL of each task file, and an iterator over the place and text of its texts.

    Args:
        patterns: Paths, folders and globs of the files, at any fsspec URL.
        storage_options: Options of the filesystem.

    Raises:
        FileNotFoundError: A pattern matches no file.
        ValueError: A file is broken, or of a format in which texts cannot be found.
    """
    for file in find_inputs(patterns, storage_options):
        yield file.url, _read_file(file.url, file.size, storage_options)


def hash_task_files(patterns: Sequence[str], storage_options: StorageOptions = None) -> str:
    """Returns a hash of the bytes of all files, as 32 hex digits. Their names do not matter.

    Args:
        patterns: Paths, folders and globs of the files, at any fsspec URL.
        storage_options: Options of the filesystem.
    """
    hashes = []
    for file in find_inputs(patterns, storage_options):
        digest = blake2b(digest_size=16)
        for block in read_blocks(whole_file(file.url, storage_options), storage_options):
            digest.update(block)
        hashes.append(digest.hexdigest())
    return blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()


def _read_file(url: str, size: int, storage_options: StorageOptions) -> Iterator[tuple[str, str]]:
    """Returns an iterator over the place and text of every text in a file.

    The name and the first bytes of the file decide how it is read.

    Args:
        url: The file.
        size: Its size in bytes, as stored.
        storage_options: Options of its filesystem.

    Raises:
        ValueError: The file is an archive, or of a format in which texts cannot be found.
    """
    if is_archive(url):
        raise ValueError(f"{url}: found an archive, expected task files; unpack it and name them")
    suffix = plain_suffix(url)
    if suffix in _JSON:
        return _read_json(read_text(url, storage_options), url)
    text_format = detect_format(url, read_head(url, size, storage_options))
    if text_format in ("parquet", "arrow"):
        blocks = read_blocks(whole_file(url, storage_options), storage_options)
        return _read_table(b"".join(blocks), text_format, url)
    if text_format == "csv" and suffix != ".tsv":
        rows = read_csv_rows(url, storage_options)
        return ((place, cell) for place, cells in rows for cell in cells)
    if text_format == "jsonl":
        return _read_json(read_text(url, storage_options), url)
    if text_format != "csv" and text_format not in _LINES:
        expected = "expected lines, CSV, JSON, Parquet or Arrow; write its texts one a line"
        raise ValueError(f"{url}: found a file of the format {text_format}, {expected}")
    lines = read_text_lines(url, storage_options)
    return ((place, cell) for place, line in lines for cell in line.split("\t"))


def _read_json(text: str, url: str) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of every string in a file of JSON.

    Args:
        text: The content of the file: a single JSON value, or one value on each line.
        url: The file, with which places begin, such as "FILE:7, data[3].title".
    """
    try:
        value = parse_json(text, url)
    except ValueError:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                place = f"{url}:{number}"
                yield from _walk(parse_json(line, place), place)
    else:
        yield from _walk(value, url)


def _read_table(data: bytes, text_format: str, url: str) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of every string in the cells of a table.

    Args:
        data: The bytes of the file.
        text_format: "parquet" or "arrow".
        url: The file, with which places and messages begin.

    Raises:
        ValueError: The file is broken, or two of its columns have the same name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = pa.BufferReader(data)
    try:
        if text_format == "parquet":
            table = pq.ParquetFile(source).read(use_threads=False)
        elif data.startswith(_ARROW_FILE):
            table = pa.ipc.open_file(source).read_all()
        else:
            table = pa.ipc.open_stream(source).read_all()
    except (pa.ArrowException, *OTHER_ERRORS) as error:
        message = f"cannot be read as {text_format.title()} ({error}); fetch the file again"
        raise ValueError(f"{url}: {message}") from error
    if len(set(table.column_names)) != table.num_columns:
        raise ValueError(f"{url}: found two columns of one name, expected one; rename one of them")
    for number, row in enumerate(table.to_pylist(), 1):
        yield from _walk(row, f"{url}, row {number}")


def _walk(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of every string in a value of JSON, at any depth, in order.

    Args:
        value: The value: a string, list, mapping, number, boolean or None.
        place: Where the value is in its file, such as "FILE:7". A string within the value has a
            place such as "FILE:7, data[3].title".
    """
    stack = [("", value)]
    while stack:
        path, inner = stack.pop()
        if isinstance(inner, str):
            yield (f"{place}, {path.removeprefix('.')}" if path else place), inner
        elif isinstance(inner, dict):
            stack += [(f"{path}.{name}", item) for name, item in reversed(inner.items())]
        elif isinstance(inner, list):
            stack += reversed([(f"{path}[{number}]", item) for number, item in enumerate(inner)])
