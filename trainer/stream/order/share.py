"""Says which rank reads which rows of a global batch: rules 4, 5 and 8 of docs/order.md.

Suffixes of arrays name their axes: S steps, K lanes, E spans (see `Span`), 1 an axis of length one.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trainer.stream.order.order import Array, StreamOrder, epoch_shards, lane_start
from trainer.stream.order.stretches import Span, step_spans

MAX_DEFAULT_LANES = 256

MAX_TABLE = 1 << 22
"""The largest number of ranges, one for each span and lane, that are computed at once.

It bounds the memory of `plan_steps`.
"""


class Rows(NamedTuple):
    """Rows that one rank reads, in the order of its slots; every field is int64 [R].

    Entry r stands for the rows start[r] to stop[r] - 1 of one block.

    Attributes:
        dataset: Index of the dataset in the mixture.
        epoch: Epoch of that dataset; it reads pass `epoch` mod the number of passes.
        shard: Index of the shard in that pass.
        block: Index of the block in the shard.
        start: First row in the block.
        stop: One past the last row.
    """

    dataset: Array
    epoch: Array
    shard: Array
    block: Array
    start: Array
    stop: Array


def rank_slots(global_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Returns a rank's slots of every global batch: the first, and one past the last (rule 5).

    Raises:
        ValueError: There are fewer instances than ranks, so some rank would have no slot.
    """
    if global_batch < world_size:
        raise ValueError(
            f"global_batch {global_batch} is smaller than world_size {world_size}: every rank"
            " needs at least one instance a step; raise the batch or start fewer ranks"
        )
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    return rank * global_batch // world_size, (rank + 1) * global_batch // world_size


class _Spans(NamedTuple):
    """The spans of S steps as a table.

    A step has at most E spans. If it has fewer, its row of the table ends with empty spans, whose
    start and stop are equal.

    Attributes:
        epochs: The different (dataset, epoch) pairs of all spans.
        epoch_index: Index into `epochs` of the epoch of each span, int64 [S, E].
        start: First place in the epoch, int64 [S, E].
        stop: One past the last place, int64 [S, E].
        epoch_size: Number of instances of the epoch, int64 [S, E].
    """

    epochs: tuple[tuple[int, int], ...]
    epoch_index: Array
    start: Array
    stop: Array
    epoch_size: Array


class _EpochLine(NamedTuple):
    """Several epochs laid end to end, as one line of instances.

    The shards of each epoch are in the order in which the epoch reads them. The number of an
    instance along the whole line is called its place on the line.

    Attributes:
        epoch_start: Place of the first instance of each epoch, one entry per epoch.
        shard_bounds: Place of the first instance of each shard, and at the end one past the place
            of the last instance. A shard without instances has the same entry as the next shard.
        shard: Index of each shard in its pass.
        dataset: Index of the dataset of each shard.
        epoch: Number of the epoch of each shard.
    """

    epoch_start: Array
    shard_bounds: Array
    shard: Array
    dataset: Array
    epoch: Array


class _LineRanges(NamedTuple):
    """Ranges of consecutive instances on an `_EpochLine`; every field is int64 [R].

    The ranges are in the order of steps, and within a step in the order of slots.

    Attributes:
        step: Index of the step that takes the range.
        start: Place on the line of the first instance.
        stop: One past the place of the last instance.
    """

    step: Array
    start: Array
    stop: Array


class _ShardRanges(NamedTuple):
    """Ranges of consecutive instances, each within one shard; every field is int64 [R].

    The ranges are in the order of steps, and within a step in the order of slots.

    Attributes:
        step: Index of the step that takes the range.
        line_shard: Index of the shard among all shards of an `_EpochLine`.
        start: First instance, counted from the start of the shard.
        stop: One past the last instance.
    """

    step: Array
    line_shard: Array
    start: Array
    stop: Array


def plan_steps(
    order: StreamOrder,
    positions: Sequence[int],
    global_batch: int,
    rank: int,
    world_size: int,
    block_size: int,
) -> tuple[Rows, Array]:
    """Returns the rows that one rank reads of several global batches (rules 4, 5 and 8).

    Rule 4 sorts a batch by lane, dataset, epoch and depth. A batch takes one range of consecutive
    instances from each lane of each span, so nothing has to be sorted: these ranges are laid out in
    order, and those in the rank's slots are taken. They are then cut at the borders of shards and
    of blocks.

    Args:
        order: The order of the stream.
        positions: Stream positions where the S global batches begin.
        global_batch: Instances of each batch over all ranks.
        rank: The rank that reads.
        world_size: Number of ranks.
        block_size: Instances of every block of a shard but the last.

    Returns:
        The ranges of rows of all batches, R of them, one batch after another; and their bounds,
        int64 [S+1]: batch s has the entries bounds[s] to bounds[s + 1] - 1.
    """
    slots = rank_slots(global_batch, rank, world_size)
    spans = _tabulate_spans([[*step_spans(order, start, global_batch)] for start in positions])
    if spans.start.size * order.num_lanes > MAX_TABLE and len(positions) > 1:
        half = len(positions) // 2
        sizes = (global_batch, rank, world_size, block_size)
        early, early_bounds = plan_steps(order, positions[:half], *sizes)
        late, late_bounds = plan_steps(order, positions[half:], *sizes)
        rows = Rows(*(np.concatenate(columns) for columns in zip(early, late, strict=True)))
        return rows, np.concatenate([early_bounds, early_bounds[-1] + late_bounds[1:]])
    line = _lay_end_to_end(order, spans.epochs)
    line_ranges = _take_slots(spans, line, order.num_lanes, slots)
    shard_ranges = _cut_at_shards(line_ranges, line)
    return _cut_at_blocks(shard_ranges, line, block_size, num_steps=len(positions))


def default_num_lanes(
    global_batch: int, pass_instances: Iterable[int], block_instances: int
) -> int:
    """Returns the number of lanes of a new stream.

    Lanes are the equal ranges of a pass that are read in turn. As docs/order.md says at the end of
    "Rules", their number is the largest divisor of the global batch that is at most
    max(1, min(256, min(N) // (8 b))).

    Args:
        global_batch: Instances of a step over all ranks.
        pass_instances: Instances N of the first pass of each dataset.
        block_instances: Instances b of a full block.
    """
    limit = max(1, min(MAX_DEFAULT_LANES, min(pass_instances) // (8 * block_instances)))
    candidates = range(min(limit, global_batch), 0, -1)
    return next(num_lanes for num_lanes in candidates if global_batch % num_lanes == 0)


def _tabulate_spans(spans_of_steps: Sequence[Sequence[Span]]) -> _Spans:
    """Returns the spans of S steps as a table.

    The table has a row for each step, and as many columns as the step with the most spans needs.

    Args:
        spans_of_steps: The spans of each step, at least one.
    """
    keys = ((span.dataset, span.epoch) for spans in spans_of_steps for span in spans)
    index_of = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    num_columns = max(map(len, spans_of_steps))
    table = []
    for spans in spans_of_steps:
        columns = [
            (index_of[dataset, epoch], start, stop, size)
            for dataset, epoch, start, stop, size in spans
        ]
        an_empty_span = (columns[0][0], 0, 0, 1)
        table.append(columns + [an_empty_span] * (num_columns - len(columns)))
    return _Spans(tuple(index_of), *np.moveaxis(np.array(table), 2, 0))


@lru_cache(maxsize=8)
def _lay_end_to_end(order: StreamOrder, epochs: tuple[tuple[int, int], ...]) -> _EpochLine:
    """Lays the instances of several epochs end to end, in the order given.

    Args:
        order: The order of the stream.
        epochs: The epochs, each as (index of the dataset, number of the epoch).
    """
    shards_of_epochs = []
    bounds_of_epochs = []  # where the shards of each epoch begin, counted from its start
    for dataset, epoch in epochs:
        shards, shard_bounds = epoch_shards(order, dataset, epoch)
        shards_of_epochs.append(shards)
        bounds_of_epochs.append(shard_bounds)
    epoch_bounds = np.cumsum([0, *(shard_bounds[-1] for shard_bounds in bounds_of_epochs)])
    shard_starts = [
        shard_bounds[:-1] + epoch_start
        for shard_bounds, epoch_start in zip(bounds_of_epochs, epoch_bounds[:-1], strict=True)
    ]
    num_shards = [len(shards) for shards in shards_of_epochs]
    dataset_of_epoch, epoch_number = np.array(epochs).T
    return _EpochLine(
        epoch_start=epoch_bounds[:-1],
        shard_bounds=np.concatenate([*shard_starts, epoch_bounds[-1:]]),
        shard=np.concatenate(shards_of_epochs),
        dataset=np.repeat(dataset_of_epoch, num_shards),
        epoch=np.repeat(epoch_number, num_shards),
    )


def _take_slots(
    spans: _Spans, line: _EpochLine, num_lanes: int, slots: tuple[int, int]
) -> _LineRanges:
    """Returns the ranges of instances that are in a rank's slots.

    Args:
        spans: The spans of the steps.
        line: The line of the epochs that the spans are part of.
        num_lanes: The number of lanes K.
        slots: The rank's first slot, and one past its last.
    """
    first_slot, end_slot = slots
    lane_K1 = np.arange(num_lanes)[:, None]

    # Place p of an epoch is in lane p mod K at depth p // K. So lane l of the places start to
    # stop - 1 has the depths from ceil((start - l) / K) to ceil((stop - l) / K) - 1.
    start_depth_SKE = -((lane_K1 - spans.start[:, None]) // num_lanes)
    count_SKE = -((lane_K1 - spans.stop[:, None]) // num_lanes) - start_depth_SKE
    lane_start_SKE = lane_start(spans.epoch_size[:, None], num_lanes, lane_K1)
    place_SKE = line.epoch_start[spans.epoch_index][:, None] + lane_start_SKE + start_depth_SKE

    num_steps = len(count_SKE)
    stop_slot_SKE = count_SKE.reshape(num_steps, -1).cumsum(1).reshape(count_SKE.shape)
    start_slot_SKE = stop_slot_SKE - count_SKE

    # Of each lane's range: how many instances are in slots before the rank's, and how many before
    # the end of the rank's.
    num_before_SKE = np.maximum(first_slot - start_slot_SKE, 0)
    num_until_SKE = np.minimum(stop_slot_SKE, end_slot) - start_slot_SKE
    is_taken_SKE = num_before_SKE < num_until_SKE
    return _LineRanges(
        step=np.nonzero(is_taken_SKE)[0],
        start=(place_SKE + num_before_SKE)[is_taken_SKE],
        stop=(place_SKE + num_until_SKE)[is_taken_SKE],
    )


def _cut_at_shards(ranges: _LineRanges, line: _EpochLine) -> _ShardRanges:
    """Cuts ranges at the borders of shards, so that each is within one shard.

    Args:
        ranges: Ranges of the line.
        line: The line of epochs.
    """
    first = np.searchsorted(line.shard_bounds, ranges.start, side="right") - 1
    last = np.searchsorted(line.shard_bounds, ranges.stop, side="left") - 1
    source, line_shard = _expand(first, last)
    shard_start = line.shard_bounds[line_shard]
    start = np.maximum(ranges.start[source] - shard_start, 0)
    stop = np.minimum(ranges.stop[source], line.shard_bounds[line_shard + 1]) - shard_start

    has_rows = start < stop  # a shard may have no instances
    return _ShardRanges(
        step=ranges.step[source][has_rows],
        line_shard=line_shard[has_rows],
        start=start[has_rows],
        stop=stop[has_rows],
    )


def _cut_at_blocks(
    ranges: _ShardRanges, line: _EpochLine, block_size: int, num_steps: int
) -> tuple[Rows, Array]:
    """Cuts ranges at the borders of blocks, so that each is within one block (rule 8).

    Args:
        ranges: Ranges within shards, in the order of steps.
        line: The line of epochs; `ranges.line_shard` is an index into its shards.
        block_size: Instances of every block of a shard but the last.
        num_steps: Number of steps S.

    Returns:
        The ranges of rows, R of them, in the order of steps; and their bounds, int64 [S+1]: step s
        has the entries bounds[s] to bounds[s + 1] - 1.
    """
    source, block = _expand(ranges.start // block_size, (ranges.stop - 1) // block_size)
    line_shard = ranges.line_shard[source]
    block_start = block * block_size
    rows = Rows(
        dataset=line.dataset[line_shard],
        epoch=line.epoch[line_shard],
        shard=line.shard[line_shard],
        block=block,
        start=np.maximum(ranges.start[source] - block_start, 0),
        stop=np.minimum(ranges.stop[source] - block_start, block_size),
    )
    return rows, np.searchsorted(ranges.step[source], np.arange(num_steps + 1))


def _expand(first: Array, last: Array) -> tuple[Array, Array]:
    """Lists the whole numbers from first[n] to last[n], one range after another.

    Returns:
        Two arrays with one entry per listed number: the index n of its range, and the number.
    """
    counts = last - first + 1
    source = np.repeat(np.arange(len(first)), counts)
    shift = np.cumsum(counts) - counts - first
    return source, np.arange(len(source)) - np.repeat(shift, counts)
