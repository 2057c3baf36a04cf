"""The examples of docs/tokens.md run, from raw lines to a filled mask."""

import re
from pathlib import Path

import pytest

from pipeline.shards.dataset import open_dataset
from tests.page_commands import run_block

PAGE = (Path(__file__).parents[2] / "docs/tokens.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.engines
@pytest.mark.parametrize(("block", "name"), list(zip(BLOCKS, ["events", "proteins"], strict=True)))
def test_an_example_runs_from_raw_lines_to_a_filled_mask(block, name, tmp_path):
    said = run_block(block, tmp_path)
    assert re.search(r"^\S+ +0\.\d{4}$", said, re.MULTILINE), said
    dataset = open_dataset(str(tmp_path / name))
    assert dataset.manifest.settings["words"] == "whitespace"
    assert dataset.manifest.counters.get("unknown_tokens", 0) == 0
