"""The order of the stream: the examples of docs/order.md, and a brute-force oracle."""

import dataclasses
import hashlib
import re
from collections import Counter, namedtuple
from itertools import chain, count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.stream.order import order as rules
from trainer.stream.order import share
from trainer.stream.order.order import PassInstances, StreamOrder, mixture_word, own_position
from trainer.stream.order.share import default_num_lanes, plan_steps
from trainer.stream.order.stretches import first_left_out, next_stretches

BLOCK = 4
ShardSize = namedtuple("ShardSize", ["name", "instances"])
shards = st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any)
passes = st.lists(shards, min_size=1, max_size=3)


def passes_of(sizes):
    return tuple(
        tuple(ShardSize(f"pass-{i:02d}/shard-{s:05d}.tar", n) for s, n in enumerate(shards))
        for i, shards in enumerate(sizes)
    )


def order_of(passes, num_lanes, seed=0):
    return StreamOrder((passes_of(passes),), (1,), seed, num_lanes)


def instances_of(rows, block_size=BLOCK):
    assert all((rows.start >= 0) & (rows.start < rows.stop) & (rows.stop <= block_size))
    return [
        (dataset, epoch, shard, block * block_size + n)
        for dataset, epoch, shard, block, start, stop in np.stack(rows, axis=1).tolist()
        for n in range(start, stop)
    ]


def rank_rows(order, position, global_batch, rank=0, world_size=1):
    return instances_of(plan_steps(order, [position], global_batch, rank, world_size, BLOCK)[0])


def oracle_of_dataset(order, d):
    """Lane, dataset, epoch, depth and instance of a dataset's own positions, one by one."""
    epoch, passes = 0, order.datasets[d]
    while True:
        shards = passes[epoch % len(passes)]
        keys = [f"{order.seed}/{epoch}/{shard.name}".encode() for shard in shards]
        digests = [hashlib.blake2b(key, digest_size=16).hexdigest() for key in keys]
        by_digest = sorted(range(len(shards)), key=digests.__getitem__)
        line = [(d, epoch, s, n) for s in by_digest for n in range(shards[s].instances)]
        lanes = np.array_split(np.arange(len(line)), order.num_lanes)
        for p in range(len(line)):
            depth, lane = divmod(p, order.num_lanes)
            yield lane, d, epoch, depth, line[lanes[lane][depth]]
        epoch += 1


def is_left_out(order, instance):
    """Whether an instance (dataset, epoch, shard, row) is among those that are left out."""
    dataset, epoch, shard, row = instance
    passes = order.left_out[dataset] if order.left_out else [PassInstances(np.empty(0), [])]
    return (shard, row) in zip(*map(list, passes[epoch % len(passes)]), strict=True)


def oracle_positions(order):
    """The same of the stream's positions that are neither skipped nor left out."""
    own = [oracle_of_dataset(order, d) for d in range(len(order.datasets))]
    drawn, period = [0] * len(own), sum(order.weights)
    skipped = {g for start, stop in order.skipped for g in range(start, stop)}
    for g in count():
        # Furthest behind its share of the positions up to this one; of equals the first.
        length = g % period + 1
        behind = [w * length - period * n for w, n in zip(order.weights, drawn, strict=True)]
        d = behind.index(max(behind))
        drawn[d] += 1
        drawn = drawn if length < period else [0] * len(drawn)
        drawn_now = next(own[d])
        if g not in skipped and not is_left_out(order, drawn_now[-1]):
            yield drawn_now


# Epoch 0 has the instances 0 to 21, epoch 1 those from 0 to 19, here written from 100 on.
EXAMPLE = [
    [0, 1, 6, 7, 12, 13, 17, 18],
    [2, 3, 8, 9, 14, 15, 19, 20],
    [4, 5, 100, 10, 11, 105, 16, 21],
    [101, 102, 106, 107, 110, 111, 115, 116],
]


@pytest.mark.parametrize("borders", [[0, 8], [0, 4, 8], [0, 2, 5, 8]])
def test_the_worked_example(borders):
    order, world_size = order_of([[22], [20]], num_lanes=4), len(borders) - 1
    for step, slots in enumerate(EXAMPLE):
        for rank, found in enumerate(shares_of(order, 8 * step, 8, world_size)):
            expected = slots[borders[rank] : borders[rank + 1]]
            assert [100 * epoch + n for _, epoch, _, n in found] == expected


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


@st.composite
def orders(draw, max_datasets=3):
    """One to three datasets of random passes, weights, lanes and skipped stretches."""
    sizes = draw(st.lists(passes, min_size=1, max_size=max_datasets))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes)))
    borders = draw(st.lists(st.integers(0, 150), max_size=4, unique=True).map(sorted))
    skipped = tuple(zip(borders[::2], borders[1::2], strict=False))
    lanes, seed = draw(st.integers(1, 60)), draw(st.integers(0, 3))
    left_out = tuple(tuple(draw(some_instances(shards)) for shards in each) for each in sizes)
    datasets = tuple(map(passes_of, sizes))
    left_out = left_out if draw(st.booleans()) else ()
    return StreamOrder(datasets, tuple(weights), seed, lanes, skipped, left_out)


@st.composite
def some_instances(draw, shards):
    """Some instances of a pass whose shards have these sizes, but not all."""
    every = [(shard, row) for shard, size in enumerate(shards) for row in range(size)]
    chosen = draw(st.lists(st.sampled_from(every), max_size=len(every) - 1, unique=True))
    return PassInstances(*np.array(chosen, np.int64).reshape(-1, 2).T)


def shares_of(order, position, global_batch, world_size):
    return [rank_rows(order, position, global_batch, n, world_size) for n in range(world_size)]


@settings(max_examples=80)
@given(orders(), st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=5))
def test_equal_to_the_oracle_while_ranks_and_batches_change(order, sizes):
    """Nothing dropped or doubled: the oracle has every instance once an epoch."""
    positions, position = oracle_positions(order), 0
    for global_batch, world_size in sizes:
        expected = sorted(next(positions) for _ in range(global_batch))
        shares = shares_of(order, position, global_batch, min(world_size, global_batch))
        assert list(chain(*shares)) == [instance for *_, instance in expected]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        position = next_stretches(order, position, global_batch)[-1][1]


@given(orders())
def test_the_first_position_that_is_left_out(order):
    whole = dataclasses.replace(order, left_out=())
    positions = oracle_positions(whole)
    expected = None
    for _ in range(200):
        *_, instance = next(positions)
        if is_left_out(order, instance):
            expected = instance
            break
    position = first_left_out(order, 10**4)
    if position is None:
        assert expected is None
    elif expected is not None:
        assert rank_rows(whole, position, 1) == [expected]
        assert first_left_out(order, position) is None
        assert first_left_out(order, position + 1) == position


@settings(max_examples=20)
@given(orders(), st.integers(1, 30))
def test_steps_that_are_planned_in_parts_are_the_same(order, global_batch):
    positions = list(range(0, 8 * global_batch, global_batch))
    expected = plan_steps(order, positions, global_batch, 0, 1, BLOCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share, "MAX_TABLE", 1)
        found = plan_steps(order, positions, global_batch, 0, 1, BLOCK)
    assert np.array_equal(np.stack(found[0]), np.stack(expected[0]))
    assert np.array_equal(found[1], expected[1])


@settings(max_examples=40)
@given(orders(), st.integers(0, 500), st.integers(1, 40), st.integers(1, 9))
def test_blocks_of_any_size_hold_the_same_instances(order, position, global_batch, block_size):
    rows = plan_steps(order, [position], global_batch, 0, 1, block_size)[0]
    assert instances_of(rows, block_size) == rank_rows(order, position, global_batch)


@settings(max_examples=40)
@given(passes, st.integers(1, 12), st.integers(1, 40), st.data())
def test_the_first_passes_give_the_order_of_their_epochs(sizes, num_lanes, global_batch, data):
    """What training that follows a build relies on."""
    known = data.draw(st.integers(1, len(sizes)))
    whole, begun = order_of(sizes, num_lanes), order_of(sizes[:known], num_lanes)
    for position in range(0, sum(map(sum, sizes[:known])) - global_batch + 1, global_batch):
        found, expected = (shares_of(each, position, global_batch, 1) for each in (begun, whole))
        assert found == expected


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_a_mixture_keeps_its_shares_at_every_position(weights):
    word, period = mixture_word(weights), sum(weights)
    assert [word.count(d) for d in range(len(weights))] == weights
    drawn = Counter()
    for length, named in enumerate(word, start=1):
        drawn[named] += 1
        for d, weight in enumerate(weights):
            assert abs(drawn[d] - weight * length / period) < len(weights)
            assert own_position(weights, d, length) == drawn[d]


@pytest.mark.parametrize(
    ("weights", "message"), [([0, 1], "at least 1"), ([10_000, 1], "add up to more than 10000")]
)
def test_weights_that_are_no_shares_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        rules.check_weights(weights)


def test_the_example_of_ten_to_one_on_the_page():
    """Its rows say from where n counts."""
    page = (Path(__file__).parents[2] / "docs/order.md").read_text()
    block = re.search(r"### Two datasets, 10:1\n.*?```\n(.*?)```", page, re.DOTALL)[1]
    named = re.findall(r"^(n|A|B|word) +(.*)$", block, re.MULTILINE)
    rows = {name: [*map(int, said.split())] for name, said in named}
    word = mixture_word([10, 1])
    drawn = [(n, word[: n - 1].count(0), word[: n - 1].count(1)) for n in rows["n"]]
    assert rows == {
        "n": [*range(1, 12)], "word": word,
        "A": [10 * n - 11 * a for n, a, _ in drawn], "B": [n - 11 * b for n, _, b in drawn],
    }  # fmt: skip
    assert word == [int(b > a) for a, b in zip(rows["A"], rows["B"], strict=True)]

    order = StreamOrder((passes_of([[20]]), passes_of([[2]])), (10, 1), seed=0, num_lanes=2)
    lines = re.findall(r"^step \d: (.*)$", block, re.MULTILINE)
    said = [re.findall(r"([AB])(\d+)", line) for line in lines]
    steps = [rank_rows(order, 4 * step, 4) for step in range(len(said))]
    assert said == [[("AB"[d], str(n)) for d, _, _, n in rows] for rows in steps]
