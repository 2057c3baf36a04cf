"""Nodes that go and come back between steps: all ranks together read the same global batches."""

from types import SimpleNamespace

import numpy as np

from trainer.order.order import StreamOrder
from trainer.order.share import plan_step


def read_batch(order, position, global_batch, world_size):
    """Epoch, shard and row of every instance, as all ranks together read them."""
    instances = []
    for rank in range(world_size):
        rows = plan_step(order, position, global_batch, rank, world_size, 512)
        for epoch, shard, block, start, stop in zip(
            rows.epoch, rows.shard, rows.block, rows.start, rows.stop, strict=True
        ):
            instances += [(epoch, shard, 512 * block + row) for row in range(start, stop)]
    return np.array(instances)


def test_2048_then_2040_then_2048_ranks_read_the_same_batches():
    global_batch, num_lanes, begin = 4096, 256, 470_000  # into the next epoch
    shards = tuple(
        SimpleNamespace(name=f"shard-{number:05d}", instances=1200 + number % 7)
        for number in range(400)
    )
    order = StreamOrder(((shards,),), (1,), 7, num_lanes, ())
    for number, world_size in enumerate([2048, 2040, 2048]):
        position = begin + number * global_batch
        batch = read_batch(order, position, global_batch, world_size)
        assert batch.shape == (global_batch, 3)
        assert (batch == read_batch(order, position, global_batch, 1)).all()
