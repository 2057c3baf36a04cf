"""Nodes that go and come back between steps: all ranks together read the same global batches, hash by hash."""

import hashlib

import numpy as np
import pytest

from trainer.order.order import ShardSize, StreamOrder
from trainer.order.share import rank_runs

NUM_STEPS = 3


def batch_hashes(order, position, global_batch, world_size):
    """A hash of each of the next global batches, as all ranks together read them in the order of their slots."""
    shares = [
        rank_runs(order, position, global_batch, rank, world_size, NUM_STEPS)
        for rank in range(world_size)
    ]
    instances = [[] for _ in range(NUM_STEPS)]
    for share in shares:
        for step in range(NUM_STEPS):
            kept = share.step == step
            columns = (share.epoch[kept], share.shard[kept], share.start[kept], share.stop[kept])
            for epoch, shard, start, stop in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                rows = np.arange(start, stop)
                instances[step].append(
                    np.stack([np.full(len(rows), epoch), np.full(len(rows), shard), rows], axis=1)
                )
    batches = [np.concatenate(each) for each in instances]
    assert [len(batch) for batch in batches] == [global_batch] * NUM_STEPS
    return [hashlib.sha256(batch.astype(np.int64).tobytes()).hexdigest() for batch in batches]


@pytest.mark.parametrize(("global_batch", "num_lanes"), [(4096, 256), (6000, 250)])
@pytest.mark.parametrize("begin", [0, 470_000], ids=["start", "into the next epoch"])
def test_2048_then_2040_then_2048_ranks_read_the_same_batches(global_batch, num_lanes, begin):
    passes = (tuple(ShardSize(f"shard-{number:05d}", 1200 + number % 7) for number in range(400)),)
    order = StreamOrder((passes,), (1,), 7, num_lanes, ())
    found, expected = [], []
    for number, world_size in enumerate([2048, 2040, 2048]):
        position = begin + number * NUM_STEPS * global_batch
        found += batch_hashes(order, position, global_batch, world_size)
        expected += batch_hashes(order, position, global_batch, 1)
    assert found == expected
    assert len(set(found)) == 3 * NUM_STEPS
