"""The examples in docs/streaming.md, run as they stand."""

import re
from pathlib import Path

import pytest
import torch

from pipeline.shards.dataset import open_dataset
from tests.trainer.tiny_dataset import write_tiny_dataset
from trainer.stream.step import StepLoader

DOCUMENT = Path(__file__).parents[2] / "docs/streaming.md"


@pytest.fixture
def examples(tmp_path, monkeypatch):
    write_tiny_dataset(tmp_path / "data", seq_lens=(128,), instances=700)
    monkeypatch.chdir(tmp_path)
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # its file
def test_webdataset_iterates_a_shard(examples):
    names = {}
    exec(
        examples[0].replace("    block = ", "    blocks.append(block := ").rstrip() + ")\n",
        names | {"blocks": (found := [])},
    )
    assert [block.num_instances for block in found] == [512, 188]


def test_the_planned_stream_is_a_pipeline_of_webdataset(examples, tmp_path):
    names = {}
    exec(examples[1], names)
    found = list(names["batches"])
    sizes = {
        "rank": 0,
        "world_size": 1,
        "global_batch": 256,
        "micro_tokens": 16_384,
        "seed": 0,
        "num_steps": 6,
    }
    with StepLoader(open_dataset(str(tmp_path / "data")), "train", 128, **sizes) as loader:
        expected = [batch for step in loader for batch in step.micro_batches]
    assert len(found) == len(expected) >= 6
    assert all(
        torch.equal(one.input_ids, other.input_ids)
        for one, other in zip(found, expected, strict=True)
    )
