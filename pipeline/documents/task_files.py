"""Texts of task files, such as a benchmark's test set, with their places: every string is one.

In JSON, JSON lines and Parquet these are strings at any depth, in other files lines and their cells
between tabs.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

from pipeline.documents.files import StorageOptions, read_blocks
from pipeline.documents.parts import find_inputs
from pipeline.documents.tables import OTHER_ERRORS
from pipeline.documents.text_files import parse_json, read_text, read_text_lines, whole_file
from pipeline.storage.compression import plain_name

_JSON = {".json", ".jsonl", ".ndjson"}


def read_task_texts(
    patterns: Sequence[str], storage_options: StorageOptions = None
) -> Iterator[tuple[str, str]]:
    """Places and texts of all files of paths, folders and globs, in the order of their URLs."""
    for file in find_inputs(patterns, storage_options):
        yield from _read_file(file.url, storage_options)


def hash_task_files(patterns: Sequence[str], storage_options: StorageOptions = None) -> str:
    """The hash of the files' bytes, whatever their names are."""
    hashes = []
    for file in find_inputs(patterns, storage_options):
        digest = blake2b(digest_size=16)
        for block in read_blocks(whole_file(file.url, storage_options), storage_options):
            digest.update(block)
        hashes.append(digest.hexdigest())
    return blake2b("".join(sorted(hashes)).encode(), digest_size=16).hexdigest()


def _read_file(url: str, storage_options: StorageOptions) -> Iterator[tuple[str, str]]:
    suffix = PurePosixPath(plain_name(url)).suffix
    if suffix == ".parquet":
        blocks = read_blocks(whole_file(url, storage_options), storage_options)
        return _read_parquet(b"".join(blocks), url)
    if suffix in _JSON:
        return _read_json(read_text(url, storage_options), url)
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


def _read_parquet(data: bytes, url: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, *OTHER_ERRORS) as error:
        message = f"{url}: cannot be read as Parquet ({error}); fetch the file again"
        raise ValueError(message) from error
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
