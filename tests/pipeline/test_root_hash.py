"""The root hash of a small mixture, as a literal: what this covers may never change."""

import json

import pytest

from pipeline.shards.dataset import open_dataset
from tests.pipeline.programs import run, write_texts

ROOT_HASH = "5100ebcfc5fd851505537be42db0e9050648dc9b6314bf0add23686de2d27915"


@pytest.fixture(scope="module")
def config(texts, tmp_path_factory):
    """Two sources with weights that share ten documents and hold near-duplicates of each other."""
    folder = tmp_path_factory.mktemp("mixed")
    of_source = {
        "news": texts[:70],
        "books": [*texts[60:], *(f"{each} Again." for each in texts[:20])],
    }
    for name, own in of_source.items():
        write_texts(folder / f"{name}.jsonl", own)
    sources = [
        {"name": "news", "input": [f"{folder}/news.jsonl"], "weight": 0.5},
        {"name": "books", "input": [f"{folder}/books.jsonl"], "weight": 3, "language": "de"},
    ]
    settings = {"sources": sources, "passes": 2, "seq_lens": [64]}
    settings |= {"num_buckets": 4, "part_bytes": 4096}
    (folder / "config.yaml").write_text(json.dumps(settings))
    return folder / "config.yaml"


@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["files", "shuffle"])
def test_a_mixture_has_the_root_hash_it_always_had(exchange, config, tmp_path):
    flags = ("--exchange", exchange, "--vocab_size", 300, "--near_duplicates", 0.8, "--workers", 1)
    assert run("build", "--config", config, "--output", tmp_path / "data", *flags) == 0
    manifest = open_dataset(f"{tmp_path}/data").manifest
    counters = manifest.counters
    assert counters["dropped_near_duplicate"] == 20, counters
    assert {group.split for group in manifest.groups} == {"train", "validation"}
    assert manifest.root_hash == ROOT_HASH
