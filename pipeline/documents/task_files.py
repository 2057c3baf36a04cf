"""Texts of task files, such as a benchmark's test set, each with its place in the file.

In JSON, JSON lines, Parquet and Arrow every string at any depth is a text; in CSV every cell; in
other files every line, and every cell of a line with tabs.
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
    """Yields place and text of every text in the files of some paths, folders and globs.

    The files are in the order of their URLs.
    """
    for _, texts in read_task_files(patterns, storage_options):
        yield from texts


def read_task_files(
    patterns: Sequence[str], storage_options: StorageOptions = None
) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    """Yields each file's URL, and an iterator over the places and texts in it.

    Raises:
        FileNotFoundError: A pattern matches no file.
        ValueError: A file is broken, or of a kind in which texts cannot be found.
    """
    for file in find_inputs(patterns, storage_options):
        yield file.url, _read_file(file.url, file.size, storage_options)


def hash_task_files(patterns: Sequence[str], storage_options: StorageOptions = None) -> str:
    """The hash of the files' bytes, whatever their names are."""
    hashes = []
    for file in find_inputs(patterns, storage_options):
        digest = blake2b(digest_size=16)
        for block in read_blocks(whole_file(file.url, storage_options), storage_options):
            digest.update(block)
        hashes.append(digest.hexdigest())
    return blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()


def _read_file(url: str, size: int, storage_options: StorageOptions) -> Iterator[tuple[str, str]]:
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
    """One value over all lines, or a value a line."""
    try:
        found = parse_json(text, url)
    except ValueError:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                place = f"{url}:{number}"
                yield from _walk(parse_json(line, place), place)
    else:
        yield from _walk(found, url)


def _read_table(data: bytes, text_format: str, url: str) -> Iterator[tuple[str, str]]:
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
    """The strings of a value, however deep, each with its path in it: data[3].title."""
    left = [("", value)]
    while left:
        path, each = left.pop()
        if isinstance(each, str):
            yield (f"{place}, {path.removeprefix('.')}" if path else place), each
        elif isinstance(each, dict):
            left += [(f"{path}.{name}", inner) for name, inner in reversed(each.items())]
        elif isinstance(each, list):
            left += reversed([(f"{path}[{number}]", inner) for number, inner in enumerate(each)])
