"""Builds with `nsp_balance: exact` of several sources with weights, over several passes: half of the B are random."""

import json

import numpy as np
import pytest

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset, read_blocks
from tests.pipeline.conftest import make_text

pytestmark = pytest.mark.processes


def build(config, vocab, output, *flags):
    words = (
        "build",
        "--config",
        config,
        "--vocab",
        vocab,
        "--output",
        output,
        "--nsp_balance",
        "exact",
        *flags,
    )
    assert run_program("python -m pipeline", "Tests.", COMMANDS, [str(word) for word in words]) == 0
    return open_dataset(str(output))


def shares_by_pass(dataset):
    """Random instances and all instances of the train split, by pass."""
    shards = [shard for shard in dataset.all_shards if shard.split == "train"]
    found = np.zeros((max(shard.pass_index for shard in shards) + 1, 2), np.int64)
    for shard in shards:
        found[shard.pass_index] += shard.random_next, shard.instances
    return found


@pytest.fixture
def weighted_config(tmp_path):
    """News three times a pass, books in two of five, of documents of one sentence and of many."""
    for name, numbers in (("news", range(60)), ("books", range(100, 160))):
        texts = (make_text(number, 2 + 8 * (number % 6)) for number in numbers)
        tmp_path.joinpath(f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )
    sources = [
        {"name": "news", "input": [str(tmp_path / "news.jsonl")], "weight": 3},
        {"name": "books", "input": [str(tmp_path / "books.jsonl")], "weight": 0.4},
    ]
    (tmp_path / "config.yaml").write_text(
        json.dumps({"sources": sources, "passes": 5, "seq_lens": [64]})
    )
    return tmp_path / "config.yaml"


def test_half_is_random_in_every_bucket_and_pass_of_a_weighted_mixture(
    weighted_config, vocab_file, tmp_path
):
    """To the pair, but where the last of a bucket's documents is one that is cut at a short target: into sentences, of
    which a document here has at most 42, and chunks of one sentence stay random.
    """
    dataset = build(
        weighted_config, vocab_file, tmp_path / "one", "--num_buckets", 2, "--workers", 1
    )
    shards = [shard for shard in dataset.all_shards if shard.split == "train"]
    assert len(shards) == 10
    assert all(shard.instances > 100 for shard in shards)
    excess = [2 * shard.random_next - shard.instances for shard in shards]
    assert np.median(np.abs(excess)) <= 1
    assert -2 <= min(excess) <= max(excess) <= 42
    random_next, instances = shares_by_pass(dataset).sum(axis=0)
    assert abs(random_next / instances - 0.5) < 0.01
    for flags in (
        ("--workers", 2, "--part_bytes", 4096),
        ("--exchange", "shuffle", "--workers", 1),
    ):
        other = build(weighted_config, vocab_file, tmp_path / flags[0], "--num_buckets", 2, *flags)
        assert other.manifest.root_hash == dataset.manifest.root_hash


def test_of_100_000_instances_of_articles_and_novels_half_are_random(shared_data, tmp_path):
    data = shared_data / "data"
    sources = [
        {"name": "articles", "input": [str(data / "wiki_en/wiki_en_0[01].txt.zst")], "weight": 2},
        {"name": "novels", "input": [str(data / "books_en/Dickens_*.txt.zst")], "weight": 0.5},
    ]
    (tmp_path / "config.yaml").write_text(
        json.dumps({"sources": sources, "passes": 3, "seq_lens": [128]})
    )
    vocab = data / "bert_vocab/bert-base-uncased-vocab.txt"
    dataset = build(tmp_path / "config.yaml", vocab, tmp_path / "data", "--workers", 1)
    shares = shares_by_pass(dataset)
    random_next, instances = shares.sum(axis=0)
    assert instances >= 100_000
    assert 0.499 <= random_next / instances <= 0.501
    assert (np.abs(shares[:, 0] / shares[:, 1] - 0.5) < 0.001).all()
    blocks = [
        block
        for shard in dataset.all_shards
        if shard.split == "train"
        for block in read_blocks(dataset, shard)
    ]
    is_random = np.concatenate([block.is_random_next for block in blocks])
    is_other = np.concatenate([block.document_a != block.document_b for block in blocks])
    assert (is_random == is_other).all(), "random means another document"
    assert int(is_random.sum()) == random_next, "the manifest's count is that of the instances"
