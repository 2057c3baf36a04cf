"""NAME.overlaps beside token parts, and the table of them all: documents that hold text of task files."""

import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide
from pipeline.text.task_texts import Overlap

OVERLAPS = ".overlaps"
OVERLAPS_TABLE = "task_overlaps.parquet"
_COLUMNS = ("id", "document", "task_text", "words")
_BATCH_ROWS = 10_000


def pack_overlaps(overlaps: Sequence[tuple[str, str, Overlap]]) -> bytes:
    """JSON lines: a document's id and place, the place of a task's text, and the words that both have."""
    rows = (
        (document, _writable(where), _writable(each.place), each.words)
        for document, where, each in overlaps
    )
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _writable(place: str) -> str:
    """Without secrets; a name that is no UTF-8 has surrogates, which Parquet cannot hold."""
    return hide(place).encode(errors="replace").decode()


def write_overlaps(tokens: Folder, part_names: Sequence[str], output: Folder) -> int:
    """Writes the table of all parts to another folder and returns its rows; memory is that of 10,000 of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, number = pa.schema([(name, pa.string()) for name in _COLUMNS]), 0
    with tempfile.TemporaryDirectory(prefix="beambert-") as folder:
        path = Path(folder) / OVERLAPS_TABLE
        with pq.ParquetWriter(path, schema) as writer:
            for rows in _batch(_read_rows(tokens, part_names)):
                columns = [list(column) for column in zip(*rows, strict=True)]
                writer.write_table(pa.table(columns, schema=schema))
                number += len(rows)
        output.write(OVERLAPS_TABLE, path)
    return number


def _read_rows(tokens: Folder, part_names: Sequence[str]) -> Iterator[list[str]]:
    sizes = tokens.list()
    names = [name for part in sorted(part_names) if (name := f"{part}{OVERLAPS}") in sizes]
    for data in tokens.read_each(names, sizes):
        yield from map(json.loads, io.BytesIO(data))


def _batch(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    batch: list[list[str]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch
