"""The start of many ranks on one store: what a node needs is read once, in turns, and in time."""

import dataclasses
import json
from itertools import chain

import numpy as np
import pytest

from pipeline.shards.block import block_instances
from pipeline.shards.dataset import Dataset, open_again, open_dataset
from pipeline.shards.manifest import BLOCKS_TABLE, SHARDS_TABLE, shard_name
from pipeline.shards.records import BlockTable
from pipeline.storage.folder import Folder
from tests.trainer.dry_reader import DryReader
from tests.trainer.http_store import serving
from tests.trainer.simulated_ranks import NODE_RANKS, Node, Rank, Simulation
from tests.trainer.stream_rank import read_steps
from tests.trainer.two_ranks import run_nodes
from trainer.order.known import KnownPasses
from trainer.order.source import one_dataset
from trainer.reading import cache as cache_module
from trainer.reading.block_reader import BlockReader
from trainer.reading.ranged_read import BlockRange, ShardReadError
from trainer.reading.settings import Reading
from trainer.stream.step import StepSizes

SEQ_LEN = 128
SHARDS, BLOCKS, BLOCK_BYTES = 8000, 62, 70_000
GROUP_SHARDS, GROUP_BYTES = 66, 140_000


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory, make_dataset):
    """A dataset of 8,000 shards of 4.3 MB whose blocks are nowhere: enough to plan by."""
    small = open_dataset(str(make_dataset(tmp_path_factory.mktemp("like") / "data", ((8,),))))
    size = block_instances(SEQ_LEN)
    table = BlockTable(
        offset=512 + BLOCK_BYTES * np.arange(BLOCKS),
        size=np.full(BLOCKS, BLOCK_BYTES - 1024),
        instances=np.full(BLOCKS, size),
        tokens=np.full(BLOCKS, 100 * size),
        crc32=np.zeros(BLOCKS, np.uint32),
    )
    one = dataclasses.replace(small.all_shards[0], seq_len=SEQ_LEN, instances=BLOCKS * size)
    names = (shard_name("train", SEQ_LEN, 0, number) for number in range(SHARDS))
    group = dataclasses.replace(small.manifest.groups[0], seq_len=SEQ_LEN)
    manifest = dataclasses.replace(small.manifest, groups=(group,))
    dataset = Dataset(
        Folder("memory://many"), manifest, [dataclasses.replace(one, name=name) for name in names]
    )
    dataset.blocks = lambda *_: table
    return dataset


def stretches(dataset, shard, block_numbers):
    """What the cache fetches for some blocks of a shard."""
    row = dataset.all_shards[shard]
    for block in block_numbers:
        for stretch in cache_module._stretches(
            BlockRange(dataset, row, dataset.blocks(row), block, block + 1)
        ):
            yield "stretch", shard, stretch.first, stretch.stop


@pytest.mark.parametrize(
    ("world_size", "first_step", "global_batch", "num_lanes", "is_cached"),
    [
        (2048, 0, 4096, 256, True),
        (2048, 0, 4096, 256, False),
        (2040, 20_000, 4096, 256, True),
        (2048, 0, 8192, 2048, True),
    ],
)
def test_2048_ranks_start_in_ten_seconds_without_a_storm(
    monkeypatch, many_shards, world_size, first_step, global_batch, num_lanes, is_cached
):
    """A store that answers after 30 ms, and 503 to more than 3,500 requests in a second."""
    passes = KnownPasses(one_dataset(many_shards), "train", SEQ_LEN)
    begin, reader = (
        passes.state(first_step * global_batch, 0, num_lanes),
        DryReader(passes, Reading()),
    )
    simulation = Simulation(monkeypatch, lambda _: 3500)
    nodes = [Node(simulation, is_cached) for _ in range(world_size // NODE_RANKS)]
    started = []
    for number in range(world_size):
        asked = reader.count(begin, StepSizes(number, world_size, global_batch, SEQ_LEN), 2)
        wanted = [divmod(block, 2**32) for block in asked.blocks]
        places = list(
            dict.fromkeys(
                chain.from_iterable(stretches(many_shards, shard, [n]) for shard, n in wanted)
            )
        )
        tables = dict.fromkeys(("rows", shard // GROUP_SHARDS) for shard, _ in wanted)
        pace = simulation.pace(number, world_size)
        started.append(Rank(nodes[number // NODE_RANKS], pace, tables, places, ()))
    simulation.run()
    assert not simulation.gave_up
    assert max(rank.ready for rank in started) <= 10
    assert max(simulation.asked.values()) <= 3000
    assert sum(simulation.asked.values()) == sum(len(node.fetched) for node in nodes), (
        "something was asked for twice"
    )
    if not is_cached:
        return
    assert all(len(node.fetched) == len(set(node.fetched)) for node in nodes)
    used = sum(
        (key[3] - key[2]) * BLOCK_BYTES
        for node in nodes
        for key in node.fetched
        if key[0] == "stretch"
    )
    tables = sum(GROUP_BYTES for node in nodes for key in node.fetched if key[0] == "rows")
    assert used + tables <= 1.2 * used


@pytest.mark.parametrize(
    ("num_lanes", "max_read_bytes", "requests"),
    [(8, 2**23, 2), (8, 2**20, 4), (8, 2**17, 32), (64, 2**23, 2)],
)
def test_what_small_steps_cost(many_shards, num_lanes, max_read_bytes, requests):
    """2 instances a rank: requests of a rank in 1,024 steps, by lanes and by the size of a read."""
    passes = KnownPasses(one_dataset(many_shards), "train", SEQ_LEN)
    reader = DryReader(passes, Reading(max_read_bytes=max_read_bytes))
    asked = reader.count(passes.state(0, 0, num_lanes), StepSizes(0, 64, 128, SEQ_LEN), 1024)
    assert len(asked.ranges) == requests


def test_a_dataset_is_opened_again_without_reading(tmp_path, make_dataset):
    with serving(make_dataset(tmp_path / "data", ((20, 9),))) as store:
        dataset = open_dataset(store.url)
        opened = dataset.opened()
        seen = dict(store.ranges)
        again = open_again(opened)
        for shard in dataset.all_shards:
            assert np.array_equal(again.blocks(shard).crc32, dataset.blocks(shard).crc32)
        assert dict(store.ranges) == seen
        assert store.count(BLOCKS_TABLE) == store.count(SHARDS_TABLE) == 1


def reader_of(dataset, settings):
    return BlockReader([(dataset, shard) for shard in dataset.all_shards], settings)


@pytest.fixture
def in_groups(monkeypatch):
    """Tables are read a row group at a time, as those of large datasets are."""
    monkeypatch.setattr("pipeline.shards.block_tables.WHOLE_BYTES", 0)


@pytest.mark.parametrize(
    "damage", [None, lambda data: data[:-1], lambda data: data[:9] + b"x" + data[10:]]
)
def test_a_node_reads_rows_of_tables_once(tmp_path, make_dataset, in_groups, damage):
    with serving(make_dataset(tmp_path / "data", ((20, 9),))) as store:
        settings = Reading(cache_dir=str(tmp_path / "cache"), budget_seconds=60)
        for process in range(3):
            dataset = open_dataset(store.url)
            reader = reader_of(dataset, settings)
            tables = [reader.table(number).result(60) for number in range(2)]
            reader.close()
            assert [len(table) for table in tables] == [3, 2]
            if process == 0:
                first = store.count(BLOCKS_TABLE)
                assert first > 0
            elif process == 1 and damage is not None:
                for path in (tmp_path / "cache" / "stretches").iterdir():
                    path.write_bytes(damage(path.read_bytes()))
            else:
                assert store.count(BLOCKS_TABLE) == first * (1 if damage is None else 2)


def test_damaged_rows_of_tables_are_not_kept(tmp_path, make_dataset, in_groups, monkeypatch):
    """The store spoils the first answer; what came is dropped and asked for again."""
    with serving(make_dataset(tmp_path / "data", ((20, 9),))) as store:
        dataset, spoiled = open_dataset(store.url), []
        read = dataset.read_bytes

        def spoil(name, start, stop):
            data = read(name, start, stop)
            if name == BLOCKS_TABLE and start == 4 and not spoiled:
                spoiled.append(name)
                return data[:30] + bytes([data[30] ^ 16]) + data[31:]
            return data

        dataset.read_bytes = spoil
        settings = Reading(cache_dir=str(tmp_path / "cache"), budget_seconds=60)
        reader = reader_of(dataset, settings)
        assert len(reader.table(0).result(60)) == 3
        reader.close()
        assert spoiled


def test_tables_that_never_come_are_named(tmp_path, make_dataset, monkeypatch):
    monkeypatch.setattr("trainer.reading.ranged_read.FIRST_DELAY_SECONDS", 0.01)
    with serving(make_dataset(tmp_path / "data", ((20, 9),))) as store:
        dataset = open_dataset(store.url)

        def fail(*_):
            raise ConnectionResetError("reset")

        dataset.read_bytes = fail
        settings = Reading(cache_dir=str(tmp_path / "cache"), budget_seconds=0.3)
        reader = reader_of(dataset, settings)
        with pytest.raises(
            ShardReadError,
            match=r"shard-00000.tar, its rows of blocks.parquet: gave up after .* reset",
        ):
            reader.table(0).result(60)
        reader.close()


@pytest.mark.engines
@pytest.mark.parametrize("busy", [0, 8])
def test_real_ranks_read_everything_once_a_node(tmp_path, make_dataset, busy):
    """Two nodes of three ranks; the store is too busy for the first requests for blocks."""
    folder = make_dataset(tmp_path / "data", ((60, 45, 80),))
    caches = [tmp_path / "node-0", tmp_path / "node-1"]
    with serving(folder, busy) as store:
        words = [
            "-m",
            "tests.trainer.stream_rank",
            store.url,
            ",".join(map(str, caches)),
            "3",
            "12",
            "14",
        ]
        ended = run_nodes([(words, 3), (words, 3)])
    assert [each.returncode for each in ended] == [0] * 6, ended[0].stderr
    found = [json.loads(each.stdout.splitlines()[-1]) for each in ended]
    alone = read_steps(open_dataset(str(folder)), 0, 1, 12, 14, Reading())
    assert [list(chain.from_iterable(shares)) for shares in zip(*found, strict=True)] == alone
    assert store.refused == busy
    assert (
        store.count("manifest.json") == store.count(SHARDS_TABLE) == store.count(BLOCKS_TABLE) == 1
    )
    kept = [len([*(cache / "stretches").iterdir()]) for cache in caches]
    assert store.count(".tar") == sum(kept)
    assert max(store.ranges.values()) <= len(caches)
