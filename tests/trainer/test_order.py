"""The order of the stream: the example of docs/order.md, and a brute-force reading of its rules as the oracle."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.stream.order import (
    Place,
    Runs,
    ShardSize,
    StreamOrder,
    cut_at_blocks,
    default_num_lanes,
    epoch_shards,
    lane_start,
    locate,
    rank_runs,
    rank_slots,
    shard_order,
)

Instance = tuple[int, int, int]  # epoch, shard, instance inside the shard


def order_of(passes: list[list[int]], num_lanes: int, seed: int = 0) -> StreamOrder:
    sizes = [
        tuple(ShardSize(f"train/L128/pass-{i:02d}/shard-{s:05d}.tar", n) for s, n in enumerate(shards))
        for i, shards in enumerate(passes)
    ]
    return StreamOrder(tuple(sizes), seed, num_lanes)


def instances_of(runs: Runs) -> list[Instance]:
    rows = zip(runs.epoch.tolist(), runs.shard.tolist(), runs.start.tolist(), runs.stop.tolist(), strict=True)
    return [(epoch, shard, n) for epoch, shard, start, stop in rows for n in range(start, stop)]


def oracle_positions(order: StreamOrder) -> Iterator[tuple[int, int, int, Instance]]:
    """Lane, epoch, depth and instance of positions 0, 1, 2, ..., counted off one by one."""
    epoch = 0
    while True:
        shards = order.passes[epoch % len(order.passes)]
        digest = {
            s: hashlib.blake2b(f"{order.seed}/{epoch}/{shard.name}".encode(), digest_size=16).hexdigest()
            for s, shard in enumerate(shards)
        }
        line = [(epoch, s, n) for s in sorted(digest, key=digest.__getitem__) for n in range(shards[s].instances)]
        quotient, extra = divmod(len(line), order.num_lanes)
        lanes, start = [], 0
        for lane in range(order.num_lanes):
            stop = start + quotient + (lane < extra)
            lanes.append(line[start:stop])
            start = stop
        for p in range(len(line)):
            depth, lane = divmod(p, order.num_lanes)
            yield lane, epoch, depth, lanes[lane][depth]
        epoch += 1


def oracle_batches(order: StreamOrder, global_batch: int, num_batches: int) -> list[list[Instance]]:
    positions = oracle_positions(order)
    batches = [sorted(next(positions) for _ in range(global_batch)) for _ in range(num_batches)]
    return [[instance for _, _, _, instance in batch] for batch in batches]


# Epoch 0 has the instances 0 to 21, epoch 1 those from 0 to 19, here written from 100 on.
EXAMPLE = [
    [0, 1, 6, 7, 12, 13, 17, 18],
    [2, 3, 8, 9, 14, 15, 19, 20],
    [4, 5, 100, 10, 11, 105, 16, 21],
    [101, 102, 106, 107, 110, 111, 115, 116],
]


@pytest.mark.parametrize(("world_size", "borders"), [(1, [0, 8]), (2, [0, 4, 8]), (3, [0, 2, 5, 8])])
def test_the_worked_example(world_size, borders):
    order = order_of([[22], [20]], num_lanes=4)
    for step, slots in enumerate(EXAMPLE):
        for rank in range(world_size):
            runs = rank_runs(order, 8 * step, 8, rank, world_size)
            found = [100 * epoch + n for epoch, _, n in instances_of(runs)]
            assert found == slots[borders[rank] : borders[rank + 1]]


def test_the_worked_example_in_single_positions():
    assert [lane_start(22, 4, lane) for lane in range(5)] == [0, 6, 12, 17, 22]
    assert [lane_start(20, 4, lane) for lane in range(5)] == [0, 5, 10, 15, 20]
    assert locate([22, 20], 4, 21) == Place(epoch=0, pass_index=0, lane=1, depth=5, instance=11)
    assert locate([22, 20], 4, 22) == Place(epoch=1, pass_index=1, lane=0, depth=0, instance=0)
    assert locate([22, 20], 4, 42) == Place(epoch=2, pass_index=0, lane=0, depth=0, instance=0)


def test_the_order_of_shards_is_fixed_by_seed_and_epoch():
    names = [f"train/L128/pass-00/shard-{i:05d}.tar" for i in range(8)]
    assert shard_order(0, 0, names) == [2, 3, 1, 0, 5, 4, 7, 6]
    assert shard_order(0, 1, names) == [7, 4, 0, 2, 6, 1, 3, 5]
    assert shard_order(1, 0, names) == [7, 3, 6, 5, 4, 1, 2, 0]


def test_shards_without_instances_are_passed_over():
    order = order_of([[0, 3, 0, 0, 2]], num_lanes=1)
    found = instances_of(rank_runs(order, 0, 5, 0, 1))
    assert sorted(found) == [(0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 4, 0), (0, 4, 1)]


def test_more_ranks_than_instances_are_refused():
    with pytest.raises(ValueError, match="global_batch 3 is smaller than world_size 4"):
        rank_slots(3, 0, 4)


@pytest.mark.parametrize(
    ("global_batch", "pass_instances", "block_instances", "num_lanes"),
    [
        (256, [10**7, 10**7], 512, 256),
        (65_536, [10**9], 512, 256),
        (256, [100_000], 512, 16),  # 24 allowed
        (96, [100_000, 90_000], 512, 16),  # 21 allowed
        (97, [10**9], 512, 97),
        (509, [10**9], 512, 1),  # a prime
        (8, [42, 20], 128, 1),
    ],
)
def test_default_number_of_lanes(global_batch, pass_instances, block_instances, num_lanes):
    assert default_num_lanes(global_batch, pass_instances, block_instances) == num_lanes


passes = st.lists(
    st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(passes, st.integers(1, 12), st.integers(1, 40), st.integers(1, 6), st.integers(0, 3))
def test_equal_to_the_oracle_for_any_world_size(sizes, num_lanes, global_batch, world_size, seed):
    order = order_of(sizes, num_lanes, seed)
    world_size = min(world_size, global_batch)
    for step, expected in enumerate(oracle_batches(order, global_batch, num_batches=5)):
        shares = [
            instances_of(rank_runs(order, step * global_batch, global_batch, rank, world_size))
            for rank in range(world_size)
        ]
        assert list(chain(*shares)) == expected
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=30, deadline=None)
@given(passes, st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_every_instance_once_an_epoch_while_the_batch_size_changes(sizes, num_lanes, batch_sizes):
    order = order_of(sizes, num_lanes)
    cycle, position, found = sum(map(sum, sizes)), 0, Counter()
    while position < 2 * cycle:
        global_batch = min(batch_sizes[position % len(batch_sizes)], 2 * cycle - position)
        found.update(instances_of(rank_runs(order, position, global_batch, 0, 1)))
        position += global_batch
    expected = {
        (epoch, s, n)
        for epoch in range(2 * len(sizes))
        for s, size in enumerate(sizes[epoch % len(sizes)])
        for n in range(size)
    }
    assert set(found) == expected
    assert set(found.values()) == {1}


@settings(max_examples=60, deadline=None)
@given(passes, st.integers(1, 12), st.integers(0, 10**12))
def test_one_position_agrees_with_a_batch_of_one(sizes, num_lanes, position):
    order = order_of(sizes, num_lanes)
    place = locate(order.pass_instances, num_lanes, position)
    [(epoch, shard, n)] = instances_of(rank_runs(order, position, 1, 0, 1))
    shards = epoch_shards(order, place.epoch)
    begin = int(shards.bounds[shards.shard.tolist().index(shard)])
    assert (epoch, begin + n) == (place.epoch, place.instance)


@settings(max_examples=60, deadline=None)
@given(passes, st.integers(1, 12), st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
def test_pieces_are_the_runs_cut_at_blocks(sizes, num_lanes, position, global_batch, block_instances):
    runs = rank_runs(order_of(sizes, num_lanes), position, global_batch, 0, 1)
    pieces, blocks = cut_at_blocks(runs, block_instances)
    assert (pieces.start // block_instances).tolist() == blocks.tolist()
    assert ((pieces.stop - 1) // block_instances).tolist() == blocks.tolist()
    assert instances_of(pieces) == instances_of(runs)
