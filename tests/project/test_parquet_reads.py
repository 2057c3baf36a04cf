"""No Parquet file is read by Arrow's threads: some processes that had any aborted at their end."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
READS = re.compile(
    r"\.read_row_groups?\(|\.iter_batches\(|^(pq\.ParquetFile|open_parquet)\(.*\)\.read\("
)


def test_every_read_of_a_parquet_file_says_that_it_uses_no_threads():
    """`pq.read_table` reads ahead in threads whatever it is told."""
    reads = []
    for room in ("tokenizer", "pipeline", "trainer"):
        for path in (ROOT / room).rglob("*.py"):
            assert "pq.read_table" not in path.read_text(), path
            nodes = ast.walk(ast.parse(path.read_text()))
            calls = (ast.unparse(node) for node in nodes if isinstance(node, ast.Call))
            reads += [(path.name, call) for call in calls if READS.search(call)]
    assert len(reads) >= 5
    assert [read for read in reads if "use_threads=False" not in read[1]] == []
