"""`python -m trainer stream --plan true`: the requests of all ranks, equal to what real readers make."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from pipeline.shards.dataset import Dataset, open_dataset
from trainer.cli import main
from trainer.preflight.request_plan import Moment, add_up, plan_moments
from trainer.pretrain.loop import describe_reads
from trainer.settings import Phase, PretrainSettings
from trainer.stream import fetch
from trainer.stream.dry_run import DryReader
from trainer.stream.fetch import BlockWindow
from trainer.stream.known import KnownPasses
from trainer.stream.rank_steps import RankSteps, StepSizes
from trainer.stream.read_settings import ReadSettings
from trainer.stream.source import WeightedDataset, one_dataset

SEQ_LEN = 8192


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    path = tmp_path_factory.mktemp("data")
    make_dataset(path / "wiki", ((300, 260, 90), (400, 205)))
    make_dataset(path / "books", ((131,),), seed=1)
    make_dataset(path / "few", ((31,),), seed=2)
    return path


@pytest.fixture
def asked(monkeypatch):
    """Every range that anyone reads of a shard: [(shard, start, stop)]."""
    ranges, lock, read = [], threading.Lock(), Dataset.read_bytes

    def read_and_count(self, name, start, stop):
        if name.endswith(".tar"):
            with lock:
                ranges.append((name, start, stop))
        return read(self, name, start, stop)

    monkeypatch.setattr(Dataset, "read_bytes", read_and_count)
    return ranges


def wait_for_blocks(monkeypatch):
    """Every block that is looked for is there: readers take as many steps at a time as they may."""
    monkeypatch.setattr(fetch, "_is_here", lambda read: read.bodies.result() is not None)


def ranges_of(passes, begin, sizes, reading, num_steps):
    """What a real reader, its threads included, reads."""
    steps = RankSteps(passes, begin, sizes, reading)
    planned, least = steps.plan(begin, num_steps), steps.min_steps()
    window = BlockWindow(passes.store, tuple(passes.shards), planned, reading, least)
    instances = sum(group.bounds[-1] for group in window.groups())
    window.close()
    return instances


@pytest.mark.parametrize(
    ("world_size", "global_batch", "buffer_bytes"),
    [
        (2, 8, 2**29),
        (2, 24, 30_000),
        (8, 32, 2**29),
        (8, 32, 9_000),
        (64, 128, 2**29),
        (64, 72, 5_000),
    ],
)
@pytest.mark.parametrize("names", [("wiki",), ("wiki", "books")])
def test_the_plan_is_what_real_readers_ask_for(
    folder, asked, monkeypatch, names, world_size, global_batch, buffer_bytes
):
    wait_for_blocks(monkeypatch)
    mixture = tuple(
        WeightedDataset(name, open_dataset(str(folder / name)), 1 + i)
        for i, name in enumerate(names)
    )
    passes = KnownPasses(mixture, "train", SEQ_LEN)
    passes.wait_for(0)
    reading = ReadSettings(buffer_bytes=buffer_bytes, max_read_bytes=4_000)
    for moment in plan_moments(world_size, steps_of_epoch=650 // global_batch, num_steps=9):
        begin = passes.state(moment.step * global_batch, 0, 4)
        reader, planned, counts = DryReader(passes, reading), [], []
        for rank in range(moment.world_size):
            sizes = StepSizes(rank, moment.world_size, global_batch, SEQ_LEN)
            planned.append(reader.count(begin, sizes, 9))
            assert not asked, "the plan read a shard"
            assert ranges_of(passes, begin, sizes, reading, 9) > 0
            counts.append((len(asked), sum(stop - start for _, start, stop in asked)))
            asked.clear()
        assert [(len(each.shards), int(each.num_bytes.sum())) for each in planned] == counts
        load = add_up(moment, planned, passes)
        assert (sum(load.node_requests), sum(load.node_bytes)) == tuple(np.sum(counts, axis=0))
        nodes = [
            np.sum(counts[first : first + 8], axis=0).tolist() for first in range(0, len(counts), 8)
        ]
        assert [*map(list, zip(load.node_requests, load.node_bytes, strict=True))] == nodes
        assert sum(load.prefix_requests.values()) == sum(load.node_requests)
        assert sum(load.prefix_bytes.values()) == sum(load.node_bytes)


def test_blocks_that_ranks_share_are_counted_once_a_node_and_once_at_all(folder):
    passes = KnownPasses(one_dataset(open_dataset(str(folder / "few"))), "train", SEQ_LEN)
    begin, reader = passes.state(0, 0, 1), DryReader(passes, ReadSettings())
    # One lane: 16 ranks of 1 instance a step, of which a block holds 8.
    asking = [reader.count(begin, StepSizes(rank, 16, 16, SEQ_LEN), 1) for rank in range(16)]
    load = add_up(Moment("start", 0, 16), asking, passes)
    assert load.node_requests == (8, 8)
    assert load.at_once == 16
    assert load.block_bytes == sum(int(each.block_bytes.sum()) for each in asking)
    size = passes.store.blocks(passes.shards[0]).size
    assert load.different_bytes == load.cached_bytes == size[:2].sum()
    assert load.block_bytes == 8 * size[:2].sum()
    assert load.prefix_requests == {"train/L8192/pass-00": 16}
    assert load.buffer_bytes == 2 * size[:2].max()


def test_pretrain_points_out_a_layout_that_reads_many_times():
    phase = Phase(seq_len=128, global_batch=4096, steps=1, peak_lr=1e-4)
    settings = PretrainSettings(data=["s3://bucket/a b"], output="run", phases=(phase,))
    assert describe_reads(settings, phase, 2048, 256, 8) == (
        "every block is fetched 8.0 times, as 2,048 ranks share 256 lanes; --cache_dir on every node makes it 1.0"
        " times; `python -m trainer stream 's3://bucket/a b' --seq_len 128 --world_size 2048 --global_batch 4096"
        " --plan true` counts what is asked of the store"
    )
    assert describe_reads(settings, phase, 256, 256, 8) is None
    cached = replace(settings, cache_dir="/cache")
    assert describe_reads(cached, phase, 2048, 256, 8) is None
    assert "every block is fetched 1.9 times, as 2,040 ranks share 256 lanes; `python" in str(
        describe_reads(cached, phase, 2040, 256, 8)
    )


def test_moments_lose_a_node():
    assert [(each.name, each.step, each.world_size) for each in plan_moments(2048, 1000, 20)] == [
        ("start", 0, 2048),
        ("middle", 500, 2048),
        ("epoch's end", 990, 2048),
        ("resume", 500, 2040),
    ]
    assert [plan_moments(world_size, 10, 2)[-1].world_size for world_size in (1, 2, 8, 9)] == [
        1,
        1,
        4,
        1,
    ]


def test_the_table_says_what_is_asked(folder, asked, capsys):
    flags = [
        "--world_size",
        "16",
        "--global_batch",
        "32",
        "--plan",
        "true",
        "--step_seconds",
        "0.5",
        "--steps",
        "10",
    ]
    assert main(["stream", str(folder / "wiki"), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not asked
    assert (
        lines[0] == "10 steps of 32 instances in 0.5 s each, 8 lanes, length 8192, 8 ranks a node"
    )
    rows = [line.rsplit(maxsplit=9) for line in lines[3:7]]
    assert [(row[0].strip(), row[1]) for row in rows] == [
        ("start", "16"),
        ("middle", "16"),
        ("epoch's end", "16"),
        ("resume", "8"),
    ]
    assert all(float(row[2]) > 0 for row in rows)
    assert any(line.startswith("start: train/L8192/pass-00 gets ") for line in lines)
    [busiest] = [line for line in lines if line.startswith("busiest prefix: ")]
    assert "% of S3's 5,500; the " in busiest
    assert busiest.endswith(" requests before a first step take at least 0.0 s at 5,500 a second")
    rates = [float(row[2].replace(",", "")) for row in rows]
    assert any(line.startswith(f"all prefixes: {max(rates):,.1f} GET/s, ") for line in lines)
    assert any(" % of the 5,000 of a new bucket of Google's and " in line for line in lines)
    assert lines[-1] == (
        "16 ranks share 8 lanes, so several ranks read the same blocks: --cache_dir lets each node fetch a block once"
    )


def test_nodes_that_do_not_divide_the_lanes_are_pointed_out(folder, capsys):
    flags = ["--world_size", "56", "--global_batch", "56", "--plan", "true", "--steps", "10"]
    assert main(["stream", str(folder / "wiki"), *flags]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "nodes share lanes, so several fetch the same blocks: a number of nodes that divides 8 fetches each block once"
        " with --cache_dir"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--world_size", "0"], "world_size is 0; it must be at least 1"),
        (["--world_size", "300"], "global_batch 256 is smaller than world_size 300"),
        (["--step_seconds", "0"], "step_seconds is 0.0; it must be above 0"),
        (["--global_batch", "32"], "has 31 instances, fewer than one step of global_batch 32"),
    ],
)
def test_what_does_not_fit(folder, capsys, flags, message):
    data = "few" if "31" in message else "wiki"
    assert main(["stream", str(folder / data), "--plan", "true", *flags]) == 2
    assert message in capsys.readouterr().err
