"""The loaders' benchmark reads data that no reader keeps in its own memory, or none."""

import re

import pytest

from pipeline.shards.block import decode_block
from pipeline.shards.dataset import open_dataset
from scripts.bench.load import copy_shards, refuse_small
from trainer.reading.settings import Reading

SEQ_LEN = 8192


@pytest.fixture
def dataset(tmp_path, make_dataset):
    return open_dataset(str(make_dataset(tmp_path / "data", ((20, 9), (17,)), validation=(30,))))


def instances(dataset):
    for shard in dataset.all_shards:
        table = dataset.blocks(shard)
        for offset, size in zip(table.offset.tolist(), table.size.tolist(), strict=True):
            yield from decode_block(
                dataset.read_bytes(shard.name, offset, offset + size), shard.name
            ).document_a


def test_small_data_is_refused_with_the_copies_that_are_enough(dataset, monkeypatch):
    with pytest.raises(
        ValueError, match=r"/data holds 0 MB of train L8192; a reader keeps up to 537 MB in its own"
    ):
        refuse_small(dataset, SEQ_LEN)
    monkeypatch.setattr(
        Reading, "buffer_bytes", 10 * sum(shard.num_bytes for shard in dataset.all_shards)
    )
    with pytest.raises(ValueError, match=r"or --copies (\d+)$") as caught:
        refuse_small(dataset, SEQ_LEN)
    [enough] = map(int, re.findall(r"--copies (\d+)$", str(caught.value)))
    refuse_small(dataset, SEQ_LEN, enough)
    with pytest.raises(ValueError, match=f"L8192 in {enough - 1} copies; .* --copies {enough}$"):
        refuse_small(dataset, SEQ_LEN, enough - 1)


def test_copies_are_passes_of_the_same_instances(dataset, tmp_path):
    copies = copy_shards(dataset, SEQ_LEN, 3, tmp_path / "copies")
    assert copies.num_passes("train", SEQ_LEN) == 6
    assert [len(copies.shards("train", SEQ_LEN, each)) for each in range(6)] == [2, 1] * 3
    own = [number for number in instances(dataset) if number < 100_029 or number >= 10**8]
    found = [*instances(copies)]
    assert len(found) == 3 * 46
    assert {number: found.count(number) for number in found} == dict.fromkeys(found, 3)
    assert {*found} <= {*own}
