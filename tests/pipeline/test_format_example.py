"""docs/format.md: its example is what the builder writes, its tables have the program's fields."""

import dataclasses
import re
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from pipeline.shards.block_stream import _BATCH, _BUFFERS, _follow, _offset
from pipeline.shards.block_tables import BLOCKS_SCHEMA
from pipeline.shards.manifest import SHARDS_SCHEMA_OF_SOURCES
from pipeline.shards.records import MANIFEST_HASH, Group, Manifest
from pipeline.shards.seal import NOTHING, Seal
from pipeline.shards.shard_file import pack_shard
from tests.datasets import TINY

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/format.md"
BUFFERS = [
    ("input_ids, offsets", np.int32), ("input_ids, values", np.uint16),
    ("segment_a_length", np.uint16),
    ("masked_lm_positions, offsets", np.int32), ("masked_lm_positions, values", np.uint16),
    ("masked_lm_ids, offsets", np.int32), ("masked_lm_ids, values", np.uint16),
    ("is_random_next, bits", np.uint8), ("document_a", np.uint64), ("document_b", np.uint64),
]  # fmt: skip


def spaced(data: bytes) -> str:
    return data.hex(" ")


def render(tar: bytes) -> str:
    """The example as lines `offset: bytes  meaning`."""
    size = int(tar[124:135], 8)
    data = memoryview(tar)[512 : 512 + size]
    lines = [
        f"{0:5}: {spaced(tar[0:12])}  name 000000.arrow",
        f"{124:5}: {spaced(tar[124:136])}  size, octal: {size}",
        f"{257:5}: {spaced(tar[257:265])}  ustar, version 00",
    ]
    batch_start = 8 + _offset(data, 4)[0]
    body = batch_start + 8 + _offset(data, batch_start + 4)[0]
    message = data[batch_start + 8 : body]
    batch = _follow(message, _offset(message, 0)[0], _BATCH)
    nodes, places = (
        list(struct.unpack_from(f"<{2 * _offset(message, at)[0]}q", message, at + 4))
        for at in (_follow(message, batch, field) for field in (1, _BUFFERS))
    )
    body_length = len(data) - body - 8
    for start, what in ((0, "schema"), (batch_start, "record batch")):
        length = struct.unpack_from("<I", data, start + 4)[0]
        framing = spaced(bytes(data[start : start + 8]))
        said = f"{what}: mark, and length of its flatbuffer: {length}"
        lines.append(f"{512 + start:5}: {framing}  {said}")
    lines.append(f"{512 + body:5}: body of {body_length} bytes; nodes (values, nulls) {nodes}")
    for (name, dtype), start, length in zip(BUFFERS, places[2::4], places[3::4], strict=True):
        stored = bytes(data[body + start : body + start + length])
        values = np.frombuffer(zstandard.decompress(stored[8:]), dtype).tolist()
        assert struct.unpack("<q", stored[:8])[0] == len(values) * np.dtype(dtype).itemsize
        frame = f"{spaced(stored[:8])} | {spaced(stored[8:])}"
        lines.append(f"{512 + body + start:5}: {frame}  {name}: {values}")
    lines.append(f"{512 + size - 8:5}: {spaced(bytes(data[-8:]))}  end of stream")
    return "\n".join(lines)


def example() -> tuple[bytes, str]:
    name = "train/L128/pass-00/shard-00000.tar"
    tar, _, table = pack_shard([TINY], "train", 128, 0, name, 4, NOTHING)
    assert len(tar) % 512 == 0
    assert table.offset.tolist() == [512]
    return tar, f"{render(tar)}\ncrc32 of bytes 512 to {511 + table.size[0]}: {table.crc32[0]:08x}"


def document_example() -> str:
    return re.search(r"```hex\n(.*?)\n```", DOCUMENT.read_text(), re.DOTALL)[1]


def pinned_pyarrow() -> str:
    return re.search(r"^pyarrow==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


def test_the_example_is_what_the_builder_writes():
    _, said = example()
    if pa.__version__ == pinned_pyarrow():  # another version may compress to other bytes
        assert document_example() == said


def test_the_buffers_of_the_document_hold_the_values_it_says():
    line = r"^ *\d+: ((?:[0-9a-f]{2} ?){8}) \| ([0-9a-f ]+)  (.*): (\[.*\])$"
    rows = re.findall(line, document_example(), re.MULTILINE)
    assert len(rows) == len(BUFFERS)
    for (length, frame, name, values), (expected, dtype) in zip(rows, BUFFERS, strict=True):
        plain = zstandard.decompress(bytes.fromhex(frame))
        assert struct.unpack("<q", bytes.fromhex(length))[0] == len(plain)
        assert str(np.frombuffer(plain, dtype).tolist()) == values
        assert name == expected


def table_after(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading of the document."""
    part = DOCUMENT.read_text().partition(f"### {heading}\n")[2]
    rows = re.search(r"^\|---.*\n((?:\|.*\n)+)", part, re.MULTILINE)[1].replace("\\", "")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]


@pytest.mark.parametrize(
    ("name", "schema"),
    [("shards.parquet", SHARDS_SCHEMA_OF_SOURCES), ("blocks.parquet", BLOCKS_SCHEMA)],
)
def test_the_columns_of_the_tables(name, schema):
    rows = table_after(name)
    said = [(column, kind) for columns, kind, _ in rows for column in columns.split(", ")]
    kinds = [re.sub("element: |item: ", "", str(field.type)) for field in schema]
    assert said == list(zip(schema.names, kinds, strict=True))


def test_the_fields_of_the_manifest():
    rows = dict(table_after("manifest.json"))
    names = [name for names in rows for name in names.split(", ")]
    fields = [field.name for field in dataclasses.fields(Manifest)]
    assert sorted(names) == sorted([*fields, MANIFEST_HASH])
    for name, record in (("groups", Group), ("seal", Seal)):
        said = re.search(r"{(.*)}", rows[name])[1].split(", ")
        assert said == [field.name for field in dataclasses.fields(record)]
