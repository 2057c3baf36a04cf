"""The examples of docs/library.md that read shards with webdataset, run as they stand."""

import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.shards.dataset import open_dataset, read_blocks
from tests.trainer.step_loader import load_steps
from tests.trainer.tiny_dataset import write_tiny_dataset

DOCUMENT = Path(__file__).parents[2] / "docs/library.md"
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files that webdataset leaves open


@pytest.fixture
def examples(tmp_path, monkeypatch):
    write_tiny_dataset(tmp_path / "data", seq_lens=(128,), instances=700)
    monkeypatch.chdir(tmp_path)
    _, _, section = DOCUMENT.read_text().partition("## Read shards with webdataset")
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:4]


def run(example):
    exec(example, names := {})
    return names


@pytest.fixture
def instances(examples, tmp_path):
    dataset = open_dataset(str(tmp_path / "data"))
    shards = dataset.shards("train", 128, 0)
    blocks = [block for shard in shards for block in read_blocks(dataset, shard)]
    return [block.slice(n, n + 1) for block in blocks for n in range(block.num_instances)]


def test_a_plain_loop_reads_rows_without_the_package(examples, instances):
    assert "pipeline" not in examples[0]
    assert len([line for line in examples[0].splitlines() if line]) <= 10
    found, last = run(examples[0]), instances[-1]
    assert found["samples"] == len(instances) == 1050
    assert found["ids"] == last.input_ids.tolist()
    assert found["length_a"] == last.segment_a_length
    assert found["is_random"] == last.is_random_next


def test_the_examples_read_a_pass_of_one_shard_too(examples, tmp_path):
    (tmp_path / "data/train/L128/pass-00/shard-00001.tar").unlink()
    assert run(examples[0])["samples"] == 700
    assert len(list(run(examples[1])["instances"])) == 700


def test_rows_are_samples_with_keys_of_their_own(examples, instances):
    found = {key: rest for key, *rest in run(examples[1])["instances"]}
    assert len(found) == 1050
    assert [*sorted(found)][700] == "train/L128/pass-00/shard-00001/000000-000"
    for key, row in zip(sorted(found), instances, strict=True):
        assert np.array_equal(found[key][0], row.input_ids)
        assert found[key][1] == row.is_random_next


def test_a_row_has_all_that_a_model_reads(examples, instances):
    shards = run(examples[1])["shards"].compose(run(examples[1])["iterate_rows"])
    for row in islice(shards, 20):
        shard, number = re.fullmatch(r".*/shard-0000(\d)/000000-(\d+)", row["__key__"]).groups()
        expected = instances[700 * int(shard) + int(number)]
        for name in ("masked_lm_positions", "masked_lm_ids"):
            assert np.array_equal(row[name], getattr(expected, name))
        types = [0] * int(expected.segment_a_length[0])
        assert row["token_type_ids"].tolist() == types + [1] * (len(row["input_ids"]) - len(types))


def test_an_index_for_wids_reads_any_block(examples):
    found = run(examples[2])
    assert len(found["blocks"]) == 3
    assert found["block"].num_instances == 350


def test_the_planned_stream_is_a_pipeline_of_webdataset(examples, tmp_path):
    found = list(run(examples[3])["batches"])
    sizes = {"rank": 0, "world_size": 1, "global_batch": 256, "micro_tokens": 16_384, "seed": 0}
    data = open_dataset(str(tmp_path / "data"))
    with load_steps(data, "train", 128, **sizes, num_steps=6) as loader:
        expected = [batch for step in loader for batch in step.micro_batches]
    assert len(found) == len(expected) >= 6
    assert all(map(torch.equal, *([each.input_ids for each in many] for many in (found, expected))))
