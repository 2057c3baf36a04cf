"""Tables of blocks whose footer is damaged or whose store fails: an error; the process lives."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.shards import block_tables
from pipeline.shards.dataset import open_dataset

ROOT = Path(__file__).parents[2]

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
    for value in {whole[position] ^ 2, 255}:
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
    command, options = [sys.executable, "-c", FLIP, str(folder)], {"cwd": ROOT, "text": True}
    ran = subprocess.run(command, capture_output=True, check=False, **options)
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
    for kind in (ConnectionResetError, PermissionError, TimeoutError, FileNotFoundError):
        failures[0] = kind("said so")
        with pytest.raises(kind, match="said so"):
            tables.table(1)
    failures[0] = None
    assert tables.table(1).offset.tolist() == expected
