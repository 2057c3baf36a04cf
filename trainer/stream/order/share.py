"""Which rank reads what of a global batch: rules 4, 5 and 8 of docs/order.md, as pure functions."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from trainer.stream.order.order import Array, StreamOrder, epoch_shards, lane_start, step_spans

MAX_DEFAULT_LANES = 256


class Rows(NamedTuple):
    """What a rank takes of a step, in slot order: rows start to stop - 1 of blocks; all [R] int64.

    Attributes:
        dataset: Index into the datasets of the stream.
        epoch: Epoch e of that dataset; its pass is e mod the number of passes.
        shard: Index into the shards of that pass.
        block: Its place in the shard.
        start: First row in the block.
        stop: One past the last.
    """

    dataset: Array
    epoch: Array
    shard: Array
    block: Array
    start: Array
    stop: Array


def rank_slots(global_batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """Rule 5: the slots [first, stop) of a rank; a ValueError where a rank would get none."""
    if global_batch < world_size:
        raise ValueError(
            f"global_batch {global_batch} is smaller than world_size {world_size}: every rank"
            " needs at least one instance a step; raise the batch or start fewer ranks"
        )
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    return rank * global_batch // world_size, (rank + 1) * global_batch // world_size


def plan_steps(
    order: StreamOrder,
    positions: Sequence[int],
    global_batch: int,
    rank: int,
    world_size: int,
    block_size: int,
) -> tuple[Rows, Array]:
    """Rules 4, 5 and 8: what a rank reads of the global batches that begin at positions [S].

    Where the rows of each begin and end [S+1] comes besides.

    A batch takes one stretch of consecutive depths from every (lane, span), so sorting it costs
    nothing: the stretches are laid out lane by lane, the rank's slots are cut out, and what is left
    is cut at the borders of shards and of their blocks, which have block_size rows. Arrays are
    suffixed by S steps, K lanes and E spans, of which some steps have empty ones.
    """
    first_slot, stop_slot = rank_slots(global_batch, rank, world_size)
    spans = [[*step_spans(order, each, global_batch)] for each in positions]
    epochs = {each[:2]: None for step in spans for each in step}
    number = {each: place for place, each in enumerate(epochs)}
    most = max(map(len, spans))
    padded = [[*step, *[(*step[0][:2], 0, 0, 1)] * (most - len(step))] for step in spans]
    epoch_SE = np.array([[number[each[:2]] for each in step] for step in padded])
    start_S1E, stop_S1E, size_S1E = np.moveaxis(np.array(padded), 2, 0)[2:, :, None]
    lane_K1 = np.arange(order.num_lanes)[:, None]
    depth_SKE = -((lane_K1 - start_S1E) // order.num_lanes)
    count_SKE = -((lane_K1 - stop_S1E) // order.num_lanes) - depth_SKE
    bounds, shard_at, epoch_at, base_E = _lay_out(order, tuple(epochs))
    begin_SKE = base_E[epoch_SE][:, None] + depth_SKE
    begin_SKE += lane_start(size_S1E, order.num_lanes, lane_K1)
    end_slot_SKE = count_SKE.reshape(len(spans), -1).cumsum(1).reshape(count_SKE.shape)
    slot_SKE = end_slot_SKE - count_SKE
    skip_SKE = np.maximum(first_slot - slot_SKE, 0)
    keep_SKE = np.minimum(end_slot_SKE, stop_slot) - slot_SKE
    kept_SKE = skip_SKE < keep_SKE
    start, stop = (begin_SKE + skip_SKE)[kept_SKE], (begin_SKE + keep_SKE)[kept_SKE]
    step = np.nonzero(kept_SKE)[0]
    first = np.searchsorted(bounds, start, side="right") - 1
    row, place = _expand(first, np.searchsorted(bounds, stop, side="left") - 1)
    start = np.maximum(start[row] - bounds[place], 0)
    stop = np.minimum(stop[row], bounds[place + 1]) - bounds[place]
    kept = start < stop  # a shard may have no instances
    step, place, start, stop = step[row][kept], place[kept], start[kept], stop[kept]
    row, block = _expand(start // block_size, (stop - 1) // block_size)
    start = np.maximum(start[row] - block * block_size, 0)
    stop = np.minimum(stop[row] - block * block_size, block_size)
    place, ends = place[row], np.searchsorted(step[row], np.arange(len(spans) + 1))
    dataset, epoch = np.array([*epochs])[epoch_at[place]].T
    return Rows(dataset, epoch, shard_at[place], block, start, stop), ends


def default_num_lanes(
    global_batch: int, pass_instances: Iterable[int], block_instances: int
) -> int:
    """K: the largest divisor of G that is at most max(1, min(256, min(N_i) // (8 b)))."""
    limit = max(1, min(MAX_DEFAULT_LANES, min(pass_instances) // (8 * block_instances)))
    lanes = range(min(limit, global_batch), 0, -1)
    return next(each for each in lanes if global_batch % each == 0)


@lru_cache(maxsize=8)
def _lay_out(
    order: StreamOrder, epochs: tuple[tuple[int, int], ...]
) -> tuple[Array, Array, Array, Array]:
    """Epochs (dataset, epoch) [E] one after another, of S shards in all.

    Returns:
        Bounds of the shards [S+1], the index of each in its pass [S], its epoch's place in `epochs`
        [S], and where each epoch begins [E].
    """
    shards, bounds = zip(*(epoch_shards(order, *each) for each in epochs), strict=True)
    base_E = np.cumsum([0, *(each[-1] for each in bounds)])
    line = [each[:-1] + base for each, base in zip(bounds, base_E, strict=False)]
    span_at = np.repeat(np.arange(len(epochs)), [len(each) for each in shards])
    return np.concatenate([*line, base_E[-1:]]), np.concatenate(shards), span_at, base_E[:-1]


def _expand(first: Array, last: Array) -> tuple[Array, Array]:
    """For each row every value from first to last: the row's index, and the value."""
    counts = last - first + 1
    row = np.repeat(np.arange(len(first)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - first, counts)
