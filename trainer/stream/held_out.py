"""Reads a split once and in order, as packed micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pipeline.shards.block import Block, block_instances, concatenate_blocks
from pipeline.shards.dataset import Dataset
from pipeline.shards.records import Shard
from trainer.stream.batches.pack import MicroBatch, cut_micro_batches, pack_micro_batches
from trainer.stream.reading.block_reader import BlockReader, PlannedStep, plan_rows
from trainer.stream.reading.settings import Reading
from trainer.stream.step import StepSizes


def iterate_validation(
    dataset: Dataset,
    seq_len: int,
    *,
    rank: int,
    world_size: int,
    micro_tokens: int,
    max_instances: int | None = None,
    reading: Reading | None = None,
    split: str = "validation",
) -> Iterator[MicroBatch]:
    """Returns a lazy iterator over one rank's share of the instances of a split.

    The instances are those of the split's first pass, in their order; let n be their number. Rank r
    of W takes the instances floor(r n / W) to floor((r + 1) n / W) - 1. Each instance is read by
    one rank, so that sums over all ranks are sums over the split. A rank may get no instance, and
    ranks may get different numbers of micro-batches.

    Args:
        dataset: The dataset to read.
        seq_len: The length of the instances to read.
        rank: Number of this process among those that share the instances.
        world_size: Number of processes that share the instances.
        micro_tokens: The most tokens of a micro-batch, at least `seq_len`.
        max_instances: How many instances to read over all ranks, the first ones; None means all.
        reading: How to read shards; None takes the defaults.
        split: The split to read.

    Raises:
        ValueError: `micro_tokens` is too small, or the dataset does not have this split and length.
    """
    StepSizes(rank, world_size, world_size, micro_tokens).check(seq_len)
    dataset.num_passes(split, seq_len)  # raises if there are none
    shards = dataset.shards(split, seq_len, 0)
    num_instances = sum(shard.instances for shard in shards)
    if max_instances is not None:
        num_instances = min(num_instances, max_instances)
    start = rank * num_instances // world_size
    stop = (rank + 1) * num_instances // world_size
    planned = _plan_instances(shards, start, stop, block_instances(seq_len))
    reading = replace(reading or Reading(), rank=rank, num_ranks=world_size)
    return _pack_in_order([(dataset, shard) for shard in shards], planned, reading, micro_tokens)


def _pack_in_order(
    shards: Sequence[tuple[Dataset, Shard]],
    planned: Iterator[PlannedStep],
    reading: Reading,
    micro_tokens: int,
) -> Iterator[MicroBatch]:
    """Reads planned rows and yields them as micro-batches, filling each before the next.

    Args:
        shards: The shards that the rows are read from, each with its dataset.
        planned: The rows, as `_plan_instances` yields them.
        reading: How to read shards.
        micro_tokens: The most tokens of a micro-batch.
    """
    left_over: list[Block] = []  # the instances of the last micro-batch so far, which may grow
    reader = BlockReader(shards, reading)
    try:
        for _, block in reader.steps(planned):
            joined = concatenate_blocks([*left_over, block])
            *full, last = cut_micro_batches(joined.offsets, (0, joined.num_instances), micro_tokens)
            yield from pack_micro_batches(joined, full)
            left_over = [joined.slice(*last)]
        for block in left_over:
            yield from pack_micro_batches(block, [(0, block.num_instances)])
    finally:
        reader.close()


def _plan_instances(
    shards: Sequence[Shard], start: int, stop: int, block_size: int
) -> Iterator[PlannedStep]:
    """Yields the rows of the instances `start` to `stop` - 1, in order.

    The rows of each block are one `PlannedStep`, which is what a `BlockReader` reads.

    Args:
        shards: Consecutive shards.
        start: First instance, counted from the start of the first shard.
        stop: One past the last instance.
        block_size: Instances of every block of a shard but the last.
    """
    shard_start = 0
    for shard_index, shard in enumerate(shards):
        for block_index, block_start in enumerate(range(0, shard.instances, block_size)):
            num_rows = min(block_size, shard.instances - block_start)
            first_row = max(start - shard_start - block_start, 0)
            stop_row = min(stop - shard_start - block_start, num_rows)
            if first_row < stop_row:
                yield plan_rows(
                    shard=np.array([shard_index]),
                    block=np.array([block_index]),
                    start=np.array([first_row]),
                    stop=np.array([stop_row]),
                )
        shard_start += shard.instances
