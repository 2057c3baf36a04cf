"""Which instance goes where: pure functions of (shards, seed, position) that docs/order.md states as rules 1 to 8.

May import the stdlib and numpy. Suffixes of arrays: K lanes, E epochs that a global batch touches, R runs.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAX_DEFAULT_LANES = 256
Array = npt.NDArray[Any]


class ShardSize(NamedTuple):
    """A shard as the order sees it."""

    name: str
    instances: int


@dataclass(frozen=True, eq=False)
class StreamOrder:
    """What the order is a function of, besides the position.

    Attributes:
        passes: The shards of every pass. Runs name a shard by its place in here.
        seed: Of the shard order.
        num_lanes: K; fixed for a whole training phase.
    """

    passes: tuple[tuple[ShardSize, ...], ...]
    seed: int
    num_lanes: int

    @cached_property
    def pass_instances(self) -> list[int]:
        """N_i of every pass."""
        return [sum(shard.instances for shard in shards) for shards in self.passes]


class Place(NamedTuple):
    """Where a stream position is found (rule 3). `instance` counts through the epoch's shards in their order."""

    epoch: int
    pass_index: int
    lane: int
    depth: int
    instance: int


class EpochSpan(NamedTuple):
    """Places start to stop - 1 of one epoch of num_instances."""

    epoch: int
    start: int
    stop: int
    num_instances: int


@dataclass(frozen=True)
class EpochShards:
    """One epoch's shards in their order: `shard` [S] indexes the pass, bounds [S+1] count instances."""

    shard: Array
    bounds: Array


@dataclass(frozen=True)
class Runs:
    """Consecutive instances of one shard each, in slot order; all [R] int64.

    Attributes:
        epoch: Epoch e; its pass is e mod the number of passes.
        shard: Index into the shards of that pass.
        start: First instance, counted inside the shard.
        stop: One past the last.
    """

    epoch: Array
    shard: Array
    start: Array
    stop: Array

    def __len__(self) -> int:
        return len(self.start)


def shard_order(seed: int, epoch: int, names: Sequence[str]) -> list[int]:
    """Rule 1: indices of the shards, sorted by the blake2b-128 of "seed/epoch/name"."""
    return sorted(
        range(len(names)),
        key=lambda i: hashlib.blake2b(f"{seed}/{epoch}/{names[i]}".encode(), digest_size=16).digest(),
    )


def lane_start(num_instances: int, num_lanes: int, lane: int) -> int:
    """Rule 2: the first instance of a lane; lane = num_lanes gives the end of the last."""
    quotient, extra = divmod(num_instances, num_lanes)
    return lane * quotient + min(lane, extra)


def locate(pass_instances: Sequence[int], num_lanes: int, position: int) -> Place:
    """Rule 3: the place of one stream position."""
    prefix = list(accumulate(pass_instances, initial=0))
    full, rest = divmod(position, prefix[-1])
    pass_index = bisect_right(prefix, rest) - 1
    depth, lane = divmod(rest - prefix[pass_index], num_lanes)
    start = lane_start(pass_instances[pass_index], num_lanes, lane)
    return Place(len(pass_instances) * full + pass_index, pass_index, lane, depth, start + depth)


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

    The batch takes one stretch of consecutive depths from every (lane, epoch), so sorting it costs nothing: the
    stretches are laid out lane by lane, the rank's slots are cut out, and what is left is cut at shard borders.
    Costs O(lanes + shards + runs) numpy work, whatever the batch.
    """
    first_slot, stop_slot = rank_slots(global_batch, rank, world_size)
    spans = epoch_spans(order.pass_instances, position, global_batch)
    line = _join_epochs([(span.epoch, epoch_shards(order, span.epoch)) for span in spans])
    start_KE, count_KE = _lane_stretches(spans, order.num_lanes)
    start, stop = _cut_slots(start_KE.ravel(), count_KE.ravel(), first_slot, stop_slot)
    return _cut_at_shards(start, stop, line)


def epoch_spans(pass_instances: Sequence[int], position: int, count: int) -> list[EpochSpan]:
    """The epochs that positions `position` to `position + count - 1` lie in, in order."""
    spans = []
    place = locate(pass_instances, 1, position)  # with a single lane the depth is the place in the epoch
    epoch, start = place.epoch, place.depth
    while count > 0:
        num_instances = pass_instances[epoch % len(pass_instances)]
        stop = min(num_instances, start + count)
        if start < stop:
            spans.append(EpochSpan(epoch, start, stop, num_instances))
        count -= stop - start
        epoch, start = epoch + 1, 0
    return spans


@lru_cache(maxsize=64)
def epoch_shards(order: StreamOrder, epoch: int) -> EpochShards:
    """The shards of an epoch in their order, and where each begins and ends in it."""
    shards = order.passes[epoch % len(order.passes)]
    indices = shard_order(order.seed, epoch, [shard.name for shard in shards])
    bounds = np.cumsum([0, *(shards[i].instances for i in indices)], dtype=np.int64)
    return EpochShards(np.array(indices, np.int64), bounds)


def default_num_lanes(global_batch: int, pass_instances: Sequence[int], block_instances: int) -> int:
    """K: the largest divisor of G that is at most max(1, min(256, min(N_i) // (8 b)))."""
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
    return Runs(runs.epoch[row], runs.shard[row], start, stop), block


@dataclass(frozen=True)
class _Line:
    """The shards of several epochs one after another: bounds [S+1], epoch and shard [S]."""

    bounds: Array
    epoch: Array
    shard: Array


def _join_epochs(parts: Sequence[tuple[int, EpochShards]]) -> _Line:
    bases = list(accumulate((int(shards.bounds[-1]) for _, shards in parts), initial=0))
    starts = [base + shards.bounds[:-1] for base, (_, shards) in zip(bases, parts, strict=False)]
    return _Line(
        bounds=np.concatenate([*starts, bases[-1:]]),
        epoch=np.repeat([epoch for epoch, _ in parts], [len(shards.shard) for _, shards in parts]),
        shard=np.concatenate([shards.shard for _, shards in parts]),
    )


def _lane_stretches(spans: Sequence[EpochSpan], num_lanes: int) -> tuple[Array, Array]:
    """First instance, on the line of the spans' epochs, and length of each lane's stretch of each epoch [K, E]."""
    _, start_E, stop_E, size_E = np.array(spans, np.int64).T
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
    return Runs(line.epoch[column][kept], line.shard[column][kept], inside_start[kept], inside_stop[kept])


def _expand(first: Array, last: Array) -> tuple[Array, Array]:
    """For each row every value from first to last: the row's index, and the value."""
    counts = last - first + 1
    row = np.repeat(np.arange(len(first)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - first, counts)


def _ceil_divide(values: Array, divisor: int) -> Array:
    result: Array = -(-values // divisor)
    return result
