"""Tables of blocks whose footer is damaged or whose store fails: an error; the process lives."""

import pytest

from pipeline.shards import block_tables
from pipeline.shards.dataset import open_dataset


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
