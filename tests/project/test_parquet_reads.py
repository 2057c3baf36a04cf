"""No Parquet file is read by Arrow's threads: some processes that had any aborted at their end."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
READS = {"read_row_group", "read_row_groups", "iter_batches"}


def calls():
    for room in ("tokenizer", "pipeline", "trainer"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    yield path.relative_to(ROOT), node


def is_threadless(call):
    return "use_threads=False" in map(ast.unparse, call.keywords)


def test_every_read_of_a_parquet_file_says_that_it_uses_no_threads():
    found = [(path, call) for path, call in calls() if call.func.attr in READS]
    assert len(found) >= 3
    assert [f"{path}:{call.lineno}" for path, call in found if not is_threadless(call)] == []


def test_whole_files_are_read_by_parquet_file():
    """`pq.read_table` reads ahead in threads whatever it is told, and imports pyarrow.dataset."""
    called = [(path, call, ast.unparse(call.func)) for path, call in calls()]
    assert [f"{path}:{call.lineno}" for path, call, name in called if name == "pq.read_table"] == []
    whole = [call for _, call, name in called if re.match(r"pq\.ParquetFile\(.*\.read$", name)]
    assert len(whole) >= 2
    assert all(map(is_threadless, whole))
