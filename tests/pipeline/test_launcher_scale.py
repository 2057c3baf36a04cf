"""The launcher asks for no more than files, parts and shards: launcher_scale.py, made small."""

import argparse

import fsspec
import pytest

from scripts.bench import launcher_scale


@pytest.fixture
def stages(monkeypatch):
    monkeypatch.setattr(launcher_scale, "NUM_FILES", 300)
    monkeypatch.setattr(launcher_scale, "WORLD", launcher_scale.World())
    fsspec.register_implementation("slow", launcher_scale.SlowStore, clobber=True)
    found = launcher_scale.measure(
        argparse.Namespace(terabytes=4e-3, documents=40_000, passes=3, latency_ms=0)
    )
    return {stage.name: stage for stage in found}


@pytest.mark.processes
def test_requests_and_descriptions_stay_within_their_bounds(stages):
    too_many = [name for name, each in stages.items() if each.requests > each.most_requests]
    assert too_many == []
    descriptions = [each.description_mb for each in stages.values() if each.description_mb]
    assert len(descriptions) == 2
    assert max(descriptions) < 1
    num_parts, num_shards = 150, 194
    indexed, published = (stages[name].requests for name in (
        "index the token parts", "seal the buckets, publish the shards"))  # fmt: skip
    assert 2 * num_parts < indexed < 2 * num_parts + 20, "a record and an index of each part"
    assert indexed - 20 + published < 3 * num_parts + 2 * num_shards + 300, (
        "once more each index; each record is read once and removed once"
    )
    table = launcher_scale.format_table(list(stages.values()))
    assert table.count("\n") == 1 + len(stages) == 7
