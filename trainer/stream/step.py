"""One rank's share of every optimizer step, as packed micro-batches (docs/order.md, rules 4 to 6).

May import torch, numpy, pipeline.shards and this package.
"""

import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block, block_instances, concatenate_blocks
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import Shard
from trainer.stream.fetch import BlockWindow
from trainer.stream.order import ShardSize, StreamOrder, cut_at_blocks, default_num_lanes, rank_runs, rank_slots
from trainer.stream.packing import MicroBatch, cut_micro_batches, empty_micro_batch, pack_micro_batches
from trainer.stream.prefetch import Prefetcher
from trainer.stream.ranged_read import ReadSettings
from trainer.stream.state import StreamState, describe_data, parse_state, refuse_other_stream

__all__ = ["MicroBatch", "RankStep", "StepLoader", "empty_micro_batch", "iterate_validation"]

MAX_PREFETCH_STEPS = 4
PREFETCH_TOKENS = 2**20
"""Steps are packed ahead while they hold fewer tokens than this: 24 bytes each."""


@dataclass(frozen=True)
class RankStep:
    """This rank's share of one global batch.

    Attributes:
        step: Steps taken before it.
        first_position: Stream position g0 of the global batch.
        micro_batches: In slot order; at least one.
        state: The stream's state after this step, plain values for JSON.
        num_instances: Of this rank's share, as are the next two.
        num_tokens: Real tokens, specials included.
        num_masked: Masked positions.
        wait_seconds: How long the caller waited for this step.
    """

    step: int
    first_position: int
    micro_batches: list[MicroBatch]
    state: dict[str, Any]
    num_instances: int
    num_tokens: int
    num_masked: int
    wait_seconds: float


class StepLoader:
    """Iterator over this rank's share of every step, without end. It does no communication between ranks.

    A background thread keeps a few steps ready. Leave it with `close()` or as a context manager; an abandoned one
    stops by itself, and none keeps the interpreter from exiting.

    Attributes:
        num_lanes: K of this stream.
        reads: Requests, blocks and bytes asked for so far.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        seq_len: int,
        *,
        rank: int,
        world_size: int,
        global_batch: int,
        micro_tokens: int,
        seed: int,
        state: Mapping[str, Any] | None = None,
        first_step: int = 0,
        num_lanes: int | None = None,
        reading: ReadSettings | None = None,
    ) -> None:
        """Starts reading.

        Args:
            dataset: From pipeline.shards.dataset.open_dataset.
            split: train or validation.
            seq_len: One of the dataset's lengths.
            rank: Of this process among world_size.
            world_size: Ranks that share every global batch; may change from run to run.
            global_batch: Instances of a step over all ranks, at least world_size; may change too.
            micro_tokens: Real tokens of a micro-batch at most, at least seq_len; may change too.
            seed: Of the order of shards.
            state: `RankStep.state` of the last step taken, to continue after it; None begins at position 0.
            first_step: Steps taken before, for `RankStep.step`.
            num_lanes: K, where the default is not wanted; a state has its own.
            reading: Memory, threads and patience.

        Raises:
            ValueError: Sizes that do not fit together, or a state of other data, another seed or number of lanes.
        """
        _check_micro_tokens(micro_tokens, seq_len)
        rank_slots(global_batch, rank, world_size)
        data, block_size = describe_data(dataset, split, seq_len), block_instances(seq_len)
        lanes = num_lanes or default_num_lanes(global_batch, data.pass_instances, block_size)
        begin = StreamState(0, seed, lanes, (), (data,))
        if state is not None:
            begin = parse_state(state)
            refuse_other_stream(begin, data, seed, num_lanes, dataset.url)
        passes = [dataset.shards(split, seq_len, i) for i in range(len(data.pass_instances))]
        sizes = tuple(tuple(ShardSize(shard.name, shard.instances) for shard in shards) for shards in passes)
        order = StreamOrder(sizes, begin.seed, begin.num_lanes)
        plan = _plan_steps(order, begin.position, global_batch, rank, world_size, block_size)
        # A lane is visited at least once in this many steps, and its block must live from one visit to the next.
        min_steps = -(-begin.num_lanes // global_batch) + 1
        window = BlockWindow(dataset, list(chain(*passes)), plan, reading or ReadSettings(), min_steps)
        steps = _pack_steps(window, begin, global_batch, micro_tokens, first_step)
        depth = PREFETCH_TOKENS * world_size // (global_batch * seq_len)
        self._steps = Prefetcher(steps, max(1, min(MAX_PREFETCH_STEPS, depth)))
        self._finalizer = weakref.finalize(self, _close, self._steps, window)
        self.num_lanes = begin.num_lanes
        self.reads = window.counts

    def __iter__(self) -> Iterator[RankStep]:
        return self

    def __next__(self) -> RankStep:
        """The next step.

        Raises:
            FileNotFoundError: A shard is missing.
            ShardReadError: A shard could not be read in full; a ValueError.
        """
        began = time.monotonic()
        packed = next(self._steps)
        return replace(packed, wait_seconds=time.monotonic() - began)

    def __enter__(self) -> "StepLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading; at once, but for a second's grace to reads on their way."""
        self._finalizer()


def iterate_validation(
    dataset: Dataset,
    seq_len: int,
    *,
    rank: int,
    world_size: int,
    micro_tokens: int,
    max_instances: int | None = None,
    reading: ReadSettings | None = None,
) -> Iterator[MicroBatch]:
    """This rank's share of the validation split's first instances, once and in order, as micro-batches.

    Rank r of W takes instances floor(r n / W) to floor((r + 1) n / W) - 1 of n, so sums over ranks are sums over the
    split; a rank may get none, and ranks may get unequal numbers of micro-batches.

    Raises:
        ValueError: The dataset has no validation instances of this length, or micro_tokens is below it.
    """
    _check_micro_tokens(micro_tokens, seq_len)
    num_instances = describe_data(dataset, "validation", seq_len).pass_instances[0]
    if max_instances is not None:
        num_instances = min(num_instances, max_instances)
    start, stop = (share * num_instances // world_size for share in (rank, rank + 1))
    shards = dataset.shards("validation", seq_len, 0)
    plan = _plan_instances(shards, start, stop, block_instances(seq_len))
    return _pack_in_order(BlockWindow(dataset, shards, plan, reading or ReadSettings()), micro_tokens)


def _pack_in_order(window: BlockWindow, micro_tokens: int) -> Iterator[MicroBatch]:
    """Micro-batches across the window's steps: only the last one is not full."""
    rest: list[Block] = []
    try:
        for block in window:
            joined = concatenate_blocks([*rest, block])
            *full, last = cut_micro_batches(joined.offsets, micro_tokens)
            yield from pack_micro_batches(joined, full)
            rest = [joined.slice(*last)]
        for block in rest:
            yield from pack_micro_batches(block, [(0, block.num_instances)])
    finally:
        window.close()


def _plan_instances(shards: Sequence[Shard], start: int, stop: int, block_size: int) -> Iterator[Array]:
    """Instances start to stop - 1 of consecutive shards, one block a step."""
    for index, shard in enumerate(shards):
        first, end = max(start, 0), min(stop, shard.instances)
        for block in range(first // block_size, -(-end // block_size) if first < end else 0):
            begin = block * block_size
            yield np.array([[index, block, max(first - begin, 0), min(end - begin, block_size)]])
        start, stop = start - shard.instances, stop - shard.instances


def _plan_steps(
    order: StreamOrder, position: int, global_batch: int, rank: int, world_size: int, block_size: int
) -> Iterator[Array]:
    """What this rank reads of every step, as BlockWindow takes it."""
    first_shard_P = np.cumsum([0, *map(len, order.passes)])
    while True:
        runs, block = cut_at_blocks(rank_runs(order, position, global_batch, rank, world_size), block_size)
        shard = first_shard_P[runs.epoch % len(order.passes)] + runs.shard
        yield np.stack([shard, block, runs.start - block * block_size, runs.stop - block * block_size], axis=1)
        position += global_batch


def _pack_steps(
    window: BlockWindow, state: StreamState, global_batch: int, micro_tokens: int, first_step: int
) -> Iterator[RankStep]:
    for step, share in enumerate(window, start=first_step):
        cuts = cut_micro_batches(share.offsets, micro_tokens)
        after = state.after(global_batch)
        yield RankStep(
            step=step,
            first_position=state.position,
            micro_batches=pack_micro_batches(share, cuts),
            state=after.to_dict(),
            num_instances=share.num_instances,
            num_tokens=share.num_tokens,
            num_masked=share.num_masked,
            wait_seconds=0.0,
        )
        state = after


def _check_micro_tokens(micro_tokens: int, seq_len: int) -> None:
    if micro_tokens < seq_len:
        raise ValueError(f"micro_tokens is {micro_tokens}: one instance may take all of seq_len {seq_len}; raise it")


def _close(steps: Prefetcher[RankStep], window: BlockWindow) -> None:
    window.close()
    steps.close()
