"""Which rank reads what of a global batch: pure functions that docs/order.md states as rules 4, 5 and 8.

May import the stdlib, numpy and `order`. Suffixes of arrays: K lanes, E spans of a global batch, R runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from trainer.stream.order import Array, EpochShards, Span, StreamOrder, batch_spans, epoch_shards

MAX_DEFAULT_LANES = 256


@dataclass(frozen=True)
class Runs:
    """Consecutive instances of one shard each, in slot order; all [R] int64.

    Attributes:
        dataset: Index into the datasets of the stream.
        epoch: Epoch e of that dataset; its pass is e mod the number of passes.
        shard: Index into the shards of that pass.
        start: First instance, counted inside the shard.
        stop: One past the last.
    """

    dataset: Array
    epoch: Array
    shard: Array
    start: Array
    stop: Array

    def __len__(self) -> int:
        return len(self.start)


def rank_slots(global_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Rule 5: the slots [first, stop) of a rank.

    Raises:
        ValueError: A rank would get none.
    """
    if global_batch < world_size:
        raise ValueError(
            f"global_batch {global_batch} is smaller than world_size {world_size}: every rank needs at least one"
            " instance a step; raise the batch or start fewer ranks"
        )
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    return rank * global_batch // world_size, (rank + 1) * global_batch // world_size


def rank_runs(order: StreamOrder, position: int, global_batch: int, rank: int, world_size: int) -> Runs:
    """Rules 4 and 5: what one rank reads of the global batch that starts at stream position `position`.

    The batch takes one stretch of consecutive depths from every (lane, span), so sorting it costs nothing: the
    stretches are laid out lane by lane, the rank's slots are cut out, and what is left is cut at shard borders.
    Costs O(lanes + shards + runs) numpy work, whatever the batch.
    """
    first_slot, stop_slot = rank_slots(global_batch, rank, world_size)
    spans = batch_spans(order, position, global_batch)
    line = _join_spans([(span, epoch_shards(order, span.dataset, span.epoch)) for span in spans])
    start_KE, count_KE = _lane_stretches(spans, order.num_lanes)
    start, stop = _cut_slots(start_KE.ravel(), count_KE.ravel(), first_slot, stop_slot)
    return _cut_at_shards(start, stop, line)


def default_num_lanes(global_batch: int, pass_instances: Iterable[int], block_instances: int) -> int:
    """K: the largest divisor of G that is at most max(1, min(256, min(N_i) // (8 b))), N_i of every pass known."""
    limit = max(1, min(MAX_DEFAULT_LANES, min(pass_instances) // (8 * block_instances)))
    return max(divisor for divisor in range(1, min(limit, global_batch) + 1) if global_batch % divisor == 0)


def cut_at_blocks(runs: Runs, block_instances: int) -> tuple[Runs, Array]:
    """Rule 8: every block of a shard holds b instances except the last, so instance n lies in block n // b.

    Returns:
        The runs cut at block borders, and the block [R] that each of them lies in.
    """
    row, block = _expand(runs.start // block_instances, (runs.stop - 1) // block_instances)
    start = np.maximum(runs.start[row], block * block_instances)
    stop = np.minimum(runs.stop[row], (block + 1) * block_instances)
    return Runs(runs.dataset[row], runs.epoch[row], runs.shard[row], start, stop), block


@dataclass(frozen=True)
class _Line:
    """The shards of several epochs one after another: bounds [S+1]; dataset, epoch and shard [S]."""

    bounds: Array
    dataset: Array
    epoch: Array
    shard: Array


def _join_spans(parts: Sequence[tuple[Span, EpochShards]]) -> _Line:
    bases = list(accumulate((int(shards.bounds[-1]) for _, shards in parts), initial=0))
    starts = [base + shards.bounds[:-1] for base, (_, shards) in zip(bases, parts, strict=False)]
    num_shards = [len(shards.shard) for _, shards in parts]
    return _Line(
        bounds=np.concatenate([*starts, bases[-1:]]),
        dataset=np.repeat([span.dataset for span, _ in parts], num_shards),
        epoch=np.repeat([span.epoch for span, _ in parts], num_shards),
        shard=np.concatenate([shards.shard for _, shards in parts]),
    )


def _lane_stretches(spans: Sequence[Span], num_lanes: int) -> tuple[Array, Array]:
    """First instance, on the line of the spans' epochs, and length of each lane's stretch of each span [K, E]."""
    _, _, start_E, stop_E, size_E = np.array(spans, np.int64).T
    base_E = np.cumsum(size_E) - size_E
    lane_K1 = np.arange(num_lanes)[:, None]
    lane_start_KE = lane_K1 * (size_E // num_lanes) + np.minimum(lane_K1, size_E % num_lanes)
    depth_KE = _ceil_divide(start_E - lane_K1, num_lanes)
    count_KE = _ceil_divide(stop_E - lane_K1, num_lanes) - depth_KE
    return base_E + lane_start_KE + depth_KE, count_KE


def _cut_slots(start: Array, count: Array, first_slot: int, stop_slot: int) -> tuple[Array, Array]:
    """Starts and stops of the stretches, laid out one after another, between two slots; empty ones are left out."""
    end_slot = np.cumsum(count)
    slot = end_slot - count
    skip = np.maximum(first_slot - slot, 0)
    keep = np.minimum(end_slot, stop_slot) - slot
    kept = skip < keep
    return (start + skip)[kept], (start + keep)[kept]


def _cut_at_shards(start: Array, stop: Array, line: _Line) -> Runs:
    first = np.searchsorted(line.bounds, start, side="right") - 1
    row, column = _expand(first, np.searchsorted(line.bounds, stop, side="left") - 1)
    offset = line.bounds[column]
    inside_start = np.maximum(start[row] - offset, 0)
    inside_stop = np.minimum(stop[row], line.bounds[column + 1]) - offset
    kept = inside_start < inside_stop  # a shard without instances
    column = column[kept]
    return Runs(line.dataset[column], line.epoch[column], line.shard[column], inside_start[kept], inside_stop[kept])


def _expand(first: Array, last: Array) -> tuple[Array, Array]:
    """For each row every value from first to last: the row's index, and the value."""
    counts = last - first + 1
    row = np.repeat(np.arange(len(first)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - first, counts)


def _ceil_divide(values: Array, divisor: int) -> Array:
    result: Array = -(-values // divisor)
    return result
