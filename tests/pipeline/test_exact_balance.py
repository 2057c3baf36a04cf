"""Builds with `nsp_balance: exact` of sources with weights: half of the B are random."""

import json

import numpy as np
import pytest

from pipeline.shards.dataset import open_dataset
from tests.pipeline.conftest import make_text
from tests.pipeline.programs import run, write_texts

pytestmark = pytest.mark.processes


def build(config, vocab, output, *flags):
    fixed = ("--vocab", vocab, "--output", output, "--nsp_balance", "exact", "--num_buckets", 2)
    assert run("build", "--config", config, *fixed, *flags) == 0
    return open_dataset(str(output))


@pytest.fixture
def weighted_config(tmp_path):
    """News three times a pass, books in two of five, of documents of one sentence and of many."""
    for name, numbers in (("news", range(60)), ("books", range(100, 160))):
        texts = (make_text(number, 2 + 8 * (number % 6)) for number in numbers)
        write_texts(tmp_path / f"{name}.jsonl", texts)
    sources = [
        {"name": "news", "input": [str(tmp_path / "news.jsonl")], "weight": 3},
        {"name": "books", "input": [str(tmp_path / "books.jsonl")], "weight": 0.4},
    ]
    settings = {"sources": sources, "passes": 5, "seq_lens": [64]}
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    return tmp_path / "config.yaml"


def test_half_is_random_in_every_bucket_and_pass_of_a_weighted_mixture(
    weighted_config, vocab_file, tmp_path
):
    """But where the last document is cut into sentences at a short target: it has 42 at most."""
    dataset = build(weighted_config, vocab_file, tmp_path / "one", "--workers", 1)
    shards = [shard for shard in dataset.all_shards if shard.split == "train"]
    assert len(shards) == 10
    assert all(shard.instances > 100 for shard in shards)
    excess = [2 * shard.random_next - shard.instances for shard in shards]
    assert np.median(np.abs(excess)) <= 1
    assert -2 <= min(excess) <= max(excess) <= 42
    assert abs(sum(excess)) / sum(shard.instances for shard in shards) < 0.02
    other = ("--workers", 1, "--part_bytes", 4096, "--exchange", "shuffle")
    cut = build(weighted_config, vocab_file, tmp_path / "other", *other)
    assert cut.manifest.root_hash == dataset.manifest.root_hash
