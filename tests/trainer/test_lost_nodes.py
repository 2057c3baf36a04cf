"""Nodes that go and come back between steps: all ranks together read the same global batches, hash by hash."""

import hashlib

import numpy as np
import pytest

from tests.trainer.test_order import ShardSize
from trainer.order.order import StreamOrder
from trainer.order.share import plan_step

NUM_STEPS = 3


def batch_hash(order, position, global_batch, world_size):
    """A hash of a global batch, as all ranks together read it in the order of their slots."""
    rows = [
        np.stack(plan_step(order, position, global_batch, rank, world_size, 2**40), axis=1)
        for rank in range(world_size)
    ]
    instances = [
        np.stack(np.broadcast_arrays(epoch, shard, np.arange(start, stop)), axis=1)
        for _, epoch, shard, _, start, stop in np.concatenate(rows)
    ]
    batch = np.concatenate(instances)
    assert len(batch) == global_batch
    return hashlib.sha256(batch.astype(np.int64).tobytes()).hexdigest()


@pytest.mark.parametrize(("global_batch", "num_lanes"), [(4096, 256), (6000, 250)])
@pytest.mark.parametrize("begin", [0, 470_000], ids=["start", "into the next epoch"])
def test_2048_then_2040_then_2048_ranks_read_the_same_batches(global_batch, num_lanes, begin):
    passes = (tuple(ShardSize(f"shard-{number:05d}", 1200 + number % 7) for number in range(400)),)
    order = StreamOrder((passes,), (1,), 7, num_lanes, ())
    found, expected = [], []
    for step in range(3 * NUM_STEPS):
        position = begin + step * global_batch
        world_size = (2048, 2040, 2048)[step // NUM_STEPS]
        found.append(batch_hash(order, position, global_batch, world_size))
        expected.append(batch_hash(order, position, global_batch, 1))
    assert found == expected
    assert len(set(found)) == 3 * NUM_STEPS
