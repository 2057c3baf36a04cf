"""NAME.overlaps beside token parts, and the table of them all: documents that hold text of task files."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.storage.folder import Folder
from pipeline.storage.secret_values import hide
from pipeline.text.task_texts import Overlap

OVERLAPS = ".overlaps"
OVERLAPS_TABLE = "task_overlaps.parquet"
_COLUMNS = ("id", "document", "task_text", "words")


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
    """Writes the table of all parts to another folder and returns its rows; memory is that of one part's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, number = pa.schema([(name, pa.string()) for name in _COLUMNS]), 0
    sizes = tokens.list()
    names = [name for part in sorted(part_names) if (name := f"{part}{OVERLAPS}") in sizes]
    with tempfile.TemporaryDirectory(prefix="beambert-") as folder:
        path = Path(folder) / OVERLAPS_TABLE
        with pq.ParquetWriter(path, schema) as writer:
            for data in tokens.read_each(names, sizes):
                rows = [json.loads(line) for line in data.splitlines()]
                columns = [list(column) for column in zip(*rows, strict=True)]
                writer.write_table(pa.table(columns, schema=schema))
                number += len(rows)
        output.write(OVERLAPS_TABLE, path)
    return number
