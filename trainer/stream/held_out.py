"""A split, once and in order, as packed micro-batches."""

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
    """This rank's share of the first instances of a split's pass 0, in order, as micro-batches.

    Rank r of W takes instances floor(r n / W) to floor((r + 1) n / W) - 1 of n, so sums over ranks
    are sums over the split. A rank may get none, and ranks unequal numbers of micro-batches.
    """
    StepSizes(rank, world_size, world_size, micro_tokens).check(seq_len)
    dataset.num_passes(split, seq_len)
    shards = dataset.shards(split, seq_len, 0)
    num_instances = sum(shard.instances for shard in shards)
    if max_instances is not None:
        num_instances = min(num_instances, max_instances)
    start, stop = (share * num_instances // world_size for share in (rank, rank + 1))
    planned = _plan_instances(shards, start, stop, block_instances(seq_len))
    reading = replace(reading or Reading(), rank=rank, num_ranks=world_size)
    return _pack_in_order([(dataset, shard) for shard in shards], planned, reading, micro_tokens)


def _pack_in_order(
    shards: Sequence[tuple[Dataset, Shard]],
    planned: Iterator[PlannedStep],
    reading: Reading,
    micro_tokens: int,
) -> Iterator[MicroBatch]:
    """Micro-batches of all rows: only the last one is not full."""
    rest: list[Block] = []
    reader = BlockReader(shards, reading)
    try:
        for _, block in reader.steps(planned):
            joined = concatenate_blocks([*rest, block])
            *full, last = cut_micro_batches(joined.offsets, (0, joined.num_instances), micro_tokens)
            yield from pack_micro_batches(joined, full)
            rest = [joined.slice(*last)]
        for block in rest:
            yield from pack_micro_batches(block, [(0, block.num_instances)])
    finally:
        reader.close()


def _plan_instances(
    shards: Sequence[Shard], start: int, stop: int, block_size: int
) -> Iterator[PlannedStep]:
    """Instances start to stop - 1 of consecutive shards, one block a step."""
    for index, shard in enumerate(shards):
        for first in range(0, shard.instances, block_size):
            rows = max(start - first, 0), min(stop - first, shard.instances - first, block_size)
            if rows[0] < rows[1]:
                yield plan_rows(*(np.array([n]) for n in (index, first // block_size, *rows)))
        start, stop = start - shard.instances, stop - shard.instances
