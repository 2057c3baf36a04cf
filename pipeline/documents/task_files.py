"""Texts of task files, such as a benchmark's test set, with their places: every string is one.

In JSON, JSON lines and Parquet these are strings at any depth, in other files lines and their cells
between tabs.
"""

import io
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

from pipeline.documents.encoding import UTF8_MARK, to_utf8
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.parts import InputFile, find_inputs
from pipeline.storage.compression import plain_name

_JSON = {".json", ".jsonl", ".ndjson"}
_LINE_ENDS = "\r\n"


def read_task_texts(
    patterns: Sequence[str], storage_options: StorageOptions = None
) -> Iterator[tuple[str, str]]:
    """Places and texts of all files of paths, folders and globs, in the order of their URLs.

    Raises:
        FileNotFoundError: A pattern matches no file.
        ValueError: A file is not what its name says, or no UTF-8.
    """
    for file in find_inputs(patterns, storage_options):
        try:
            yield from _read_file(file, storage_options)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{file.url}: is no UTF-8 ({error}); expected text, JSON or Parquet"
            ) from error


def hash_task_files(patterns: Sequence[str], storage_options: StorageOptions = None) -> str:
    """The hash of the files' bytes, whatever their names are; raises as `read_task_texts`."""
    hashes = []
    for file in find_inputs(patterns, storage_options):
        digest = blake2b(digest_size=16)
        for block in read_blocks(_whole(file), storage_options):
            digest.update(block)
        hashes.append(digest.hexdigest())
    return blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()


def _whole(file: InputFile) -> FileRange:
    return FileRange(file.url, 0, file.size, file.size, "text")


def _read_file(file: InputFile, storage_options: StorageOptions) -> Iterator[tuple[str, str]]:
    suffix = PurePosixPath(plain_name(file.url)).suffix
    blocks = read_blocks(_whole(file), storage_options)
    if suffix == ".parquet":
        return _read_parquet(b"".join(blocks), file.url)
    text = b"".join(to_utf8(blocks, file.url)).removeprefix(UTF8_MARK).decode()
    return _read_json(text, file.url) if suffix in _JSON else _read_lines(text, file.url)


def _read_lines(text: str, url: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        for cell in line.strip(_LINE_ENDS).split("\t"):
            yield f"{url}:{number}", cell


def _read_json(text: str, url: str) -> Iterator[tuple[str, str]]:
    """One value over all lines, or a value a line."""
    try:
        found = json.loads(text)
    except ValueError:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield from _walk(_parse_line(line, f"{url}:{number}"), f"{url}:{number}", "")
    else:
        yield from _walk(found, url, "")


def _parse_line(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(
            f"{place}: found no JSON ({error}), expected a value a line, or one in the file"
        ) from error


def _read_parquet(data: bytes, url: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{url}: cannot be read as Parquet ({error}); fetch the file again"
        ) from error
    number = 0
    for batch in table.to_batches(1024):
        for row in batch.to_pylist():
            number += 1
            yield from _walk(row, f"{url}, row {number}", "")


def _walk(value: Any, place: str, path: str) -> Iterator[tuple[str, str]]:
    """The strings of a value, each with its path in it: data[3].title."""
    if isinstance(value, str):
        yield (f"{place}, {path.removeprefix('.')}" if path else place), value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _walk(each, place, f"{path}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _walk(each, place, f"{path}[{number}]")
