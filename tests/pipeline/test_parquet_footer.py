"""Parquet files that lie about their sizes: an error that names the file, in bounded memory, and the process lives."""

import io
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.shards import block_tables
from pipeline.shards.dataset import open_dataset
from pipeline.storage.parquet_footer import (
    DamagedParquetError,
    read_footer,
)

ROOT = Path(__file__).parents[2]
URL = "memory:///lies/f.parquet"
TEXTS = [f"text {number} " * 20 for number in range(300)]


def write(columns, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=100, **options)
    return buffer.getvalue()


def footer_of(data):
    return read_footer(lambda start, stop: data[start:stop], len(data))


def read(data):
    fsspec.filesystem("memory").pipe("/lies/f.parquet", data)
    return [
        document.text
        for part in plan_parts(find_inputs([URL]), "parquet", 2**20)
        for document in read_part(part)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd", "use_dictionary": False},
        {"data_page_version": "2.0", "data_page_size": 500},
        {"write_statistics": False, "version": "1.0"},
        {
            "compression": "none",
            "column_encoding": "DELTA_LENGTH_BYTE_ARRAY",
            "use_dictionary": False,
        },
        {"write_page_index": True, "write_page_checksum": True, "store_schema": False},
    ],
    ids=range(6),
)
def test_what_is_read_is_what_arrow_reads(options):
    columns = {"text": TEXTS, "deep": [[{"a": text}] for text in TEXTS]}
    columns |= {"empty": pa.array([None] * 300, pa.string())}
    if "column_encoding" in options:
        columns = {"text": TEXTS}
    data = write(columns, **options)
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    groups = footer_of(data)
    assert len(groups) == metadata.num_row_groups == 3
    for number, group in enumerate(groups):
        theirs = metadata.row_group(number)
        assert group.num_rows == theirs.num_rows
        for chunk, column in zip(
            group.columns, map(theirs.column, range(theirs.num_columns)), strict=True
        ):
            start = min(
                each for each in (column.dictionary_page_offset, column.data_page_offset) if each
            )
            expected = (start, start + column.total_compressed_size, column.num_values)
            assert (chunk.start, chunk.stop, chunk.num_values) == expected
            assert b".".join(chunk.path).decode() == column.path_in_schema
    assert read(data) == TEXTS


PLAIN = write({"text": TEXTS}, use_dictionary=False, compression="none", write_statistics=False)
CHUNKS = [group.columns[0] for group in footer_of(PLAIN)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1\xff\xff\xff\x7fPAR1",
        b"PAR1\0\0\0\0PARE",
        b"PAR1\0\0\0\0PAR1",
    ],
)
def test_what_is_no_parquet_file_tells_no_footer(data):
    with pytest.raises(DamagedParquetError, match=r"tells no footer of it|its footer is damaged"):
        footer_of(data)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_footer_is_an_error_of_this_kind_or_none(data):
    spoilt = bytearray(PLAIN)
    begin = len(PLAIN) - 8 - int.from_bytes(PLAIN[-8:-4], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(begin, len(PLAIN) - 1))] = data.draw(st.integers(0, 255))
    try:
        groups = footer_of(bytes(spoilt))
    except DamagedParquetError:
        return
    assert all(
        4 <= chunk.start <= chunk.stop <= len(PLAIN) for group in groups for chunk in group.columns
    )


FLIP = """
import json
import sys
from pathlib import Path
from pipeline.shards import block_tables
from pipeline.shards.dataset import open_dataset
block_tables.WHOLE_BYTES = 100
dataset = open_dataset(sys.argv[1])
shards, path = dataset.all_shards, Path(sys.argv[1], "blocks.parquet")
whole = path.read_bytes()
begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
found = {"fine": 0, "damaged": 0}
for position in range(begin, len(whole)):
    for value in {0, whole[position] ^ 2, 255}:
        data = whole[:position] + bytes([value]) + whole[position + 1 :]
        tables = block_tables.open_block_tables(data, shards, "blocks.parquet")
        for row in (0, len(shards) - 1):
            try:
                tables.table(row)
                found["fine"] += 1
            except ValueError as error:
                assert str(error).startswith("blocks.parquet: "), error
                found["damaged"] += 1
print(json.dumps(found))
"""


@pytest.mark.processes
def test_no_damage_to_the_footer_of_a_large_block_table_ends_the_process(
    make_dataset, tmp_path, monkeypatch
):
    """Arrow ends it where it is asked for the place of a column that is described wrongly."""
    monkeypatch.setattr("pipeline.shards.block_tables.ROWS_PER_GROUP", 4)
    folder = make_dataset(tmp_path / "data", ((60, 45),))
    ran = subprocess.run(
        [sys.executable, "-c", FLIP, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = eval(ran.stdout)
    assert found["damaged"] > 500
    assert found["fine"] > 100


def test_what_a_store_fails_with_inside_arrow_is_no_damage(make_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(block_tables, "WHOLE_BYTES", 100)
    monkeypatch.setattr(block_tables, "ROWS_PER_GROUP", 4)
    folder = make_dataset(tmp_path / "data", ((60, 45),))
    data, shards = (folder / "blocks.parquet").read_bytes(), open_dataset(str(folder)).all_shards
    failures = [None]

    def read_range(start, stop):
        if failures[0] is not None and start < len(data) // 3:
            raise failures[0]
        return data[start:stop]

    tables = block_tables.BlockTables(read_range, lambda: len(data), shards, "here")
    expected = tables.table(1).offset.tolist()
    for failure in (
        ConnectionResetError("reset"),
        PermissionError("no"),
        TimeoutError("late"),
        FileNotFoundError("gone"),
    ):
        failures[0] = failure
        with pytest.raises(type(failure), match=str(failure)):
            tables.table(1)
    failures[0] = None
    assert tables.table(1).offset.tolist() == expected
