"""Which rank reads what of a global batch, by the rules 4, 5 and 8 of docs/order.md.

The functions are pure. Suffixes of arrays: S steps, K lanes, E spans of all steps, C spans of the
step that has most, R runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trainer.order.order import Array, Spans, StreamOrder, epoch_shards, expand, step_spans

MAX_DEFAULT_LANES = 256


@dataclass(frozen=True)
class Runs:
    """Consecutive instances of one shard each, step by step in slot order; all [R] int64.

    Attributes:
        step: Counted from the first that was asked for.
        dataset: Index into the datasets of the stream.
        epoch: Epoch e of that dataset; its pass is e mod the number of passes.
        shard: Index into the shards of that pass.
        start: First instance, counted inside the shard.
        stop: One past the last.
    """

    step: Array
    dataset: Array
    epoch: Array
    shard: Array
    start: Array
    stop: Array

    def __len__(self) -> int:
        return len(self.start)

    def of_every(self, num_steps: int) -> "Runs":
        """The runs of the first of every num_steps steps, which are counted anew."""
        if num_steps == 1:
            return self
        kept = self.step % num_steps == 0
        return Runs(
            self.step[kept] // num_steps,
            *(each[kept] for name, each in vars(self).items() if name != "step"),
        )


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


def rank_runs(
    order: StreamOrder,
    position: int,
    global_batch: int,
    rank: int,
    world_size: int,
    num_steps: int = 1,
) -> Runs:
    """Rules 4 and 5: what one rank reads of the next steps' global batches.

    They begin at stream position `position`. A batch takes one stretch of consecutive depths from
    every (lane, span), so sorting it costs nothing: the stretches are laid out lane by lane, the
    rank's slots are cut out, and what is left is cut at shard borders. Costs O(shards + steps x
    lanes + runs) numpy work, whatever the batch.
    """
    first_slot, stop_slot = rank_slots(global_batch, rank, world_size)
    spans = step_spans(order, position, global_batch, num_steps)
    line, base_E = _lay_out(order, spans)
    start_SKC, count_SKC = _lane_stretches(spans, base_E, order.num_lanes, num_steps)
    flat = (num_steps, -1)
    return _cut_at_shards(
        *_cut_slots(start_SKC.reshape(flat), count_SKC.reshape(flat), first_slot, stop_slot), line
    )


def default_num_lanes(
    global_batch: int, pass_instances: Iterable[int], block_instances: int
) -> int:
    """K: the largest divisor of G that is at most max(1, min(256, min(N_i) // (8 b))).

    N_i are the instances of every pass known.
    """
    limit = max(1, min(MAX_DEFAULT_LANES, min(pass_instances) // (8 * block_instances)))
    return max(
        divisor for divisor in range(1, min(limit, global_batch) + 1) if global_batch % divisor == 0
    )


def cut_at_blocks(runs: Runs, block_instances: int) -> tuple[Runs, Array]:
    """Rule 8: every block of a shard holds b instances except the last.

    Instance n therefore lies in block n // b.

    Returns:
        The runs cut at block borders, and the block [R] that each of them lies in.
    """
    row, block = expand(runs.start // block_instances, (runs.stop - 1) // block_instances)
    start = np.maximum(runs.start[row], block * block_instances)
    stop = np.minimum(runs.stop[row], (block + 1) * block_instances)
    return Runs(
        runs.step[row], runs.dataset[row], runs.epoch[row], runs.shard[row], start, stop
    ), block


@dataclass(frozen=True)
class _Line:
    """The shards of several epochs one after another: bounds [S+1], the others [S]."""

    bounds: Array
    dataset: Array
    epoch: Array
    shard: Array


def _lay_out(order: StreamOrder, spans: Spans) -> tuple[_Line, Array]:
    """The epochs of all spans one after another, and where each span's epoch begins [E]."""
    named = list(zip(spans.dataset.tolist(), spans.epoch.tolist(), strict=True))
    found = {each: epoch_shards(order, *each) for each in dict.fromkeys(named)}
    sizes = [int(shards.bounds[-1]) for shards in found.values()]
    bases = dict(zip(found, np.cumsum([0, *sizes]).tolist(), strict=False))
    num_shards = [len(shards.shard) for shards in found.values()]
    starts = [bases[each] + shards.bounds[:-1] for each, shards in found.items()]
    line = _Line(
        bounds=np.concatenate([*starts, [sum(sizes)]]),
        dataset=np.repeat([dataset for dataset, _ in found], num_shards),
        epoch=np.repeat([epoch for _, epoch in found], num_shards),
        shard=np.concatenate([shards.shard for shards in found.values()]),
    )
    return line, np.array([bases[each] for each in named])


def _lane_stretches(
    spans: Spans, base_E: Array, num_lanes: int, num_steps: int
) -> tuple[Array, Array]:
    """Where each lane's stretch of each span begins on the line of epochs, and its length.

    Both are [S, K, C].
    """
    lane_1K = np.arange(num_lanes)
    start_E1, stop_E1, size_E1 = (
        column[:, None] for column in (spans.start, spans.stop, spans.num_instances)
    )
    lane_start_EK = lane_1K * (size_E1 // num_lanes) + np.minimum(lane_1K, size_E1 % num_lanes)
    depth_EK = _ceil_divide(start_E1 - lane_1K, num_lanes)
    count_EK = _ceil_divide(stop_E1 - lane_1K, num_lanes) - depth_EK
    column_E = np.arange(len(spans.step)) - np.searchsorted(spans.step, spans.step)
    start_SKC = np.zeros((num_steps, num_lanes, int(column_E.max()) + 1), np.int64)
    count_SKC = np.zeros_like(start_SKC)
    start_SKC[spans.step, :, column_E] = base_E[:, None] + lane_start_EK + depth_EK
    count_SKC[spans.step, :, column_E] = count_EK
    return start_SKC, count_SKC


def _cut_slots(
    start: Array, count: Array, first_slot: int, stop_slot: int
) -> tuple[Array, Array, Array]:
    """Step, start and stop of what lies between two slots of each step's stretches [S, n].

    The stretches of a step are laid out one after another.
    """
    end_slot = np.cumsum(count, axis=1)
    slot = end_slot - count
    skip = np.maximum(first_slot - slot, 0)
    keep = np.minimum(end_slot, stop_slot) - slot
    kept = skip < keep
    return np.nonzero(kept)[0], (start + skip)[kept], (start + keep)[kept]


def _cut_at_shards(step: Array, start: Array, stop: Array, line: _Line) -> Runs:
    first = np.searchsorted(line.bounds, start, side="right") - 1
    row, column = expand(first, np.searchsorted(line.bounds, stop, side="left") - 1)
    offset = line.bounds[column]
    inside_start = np.maximum(start[row] - offset, 0)
    inside_stop = np.minimum(stop[row], line.bounds[column + 1]) - offset
    kept = inside_start < inside_stop  # a shard without instances
    column = column[kept]
    places = (inside_start[kept], inside_stop[kept])
    return Runs(
        step[row[kept]], line.dataset[column], line.epoch[column], line.shard[column], *places
    )


def _ceil_divide(values: Array, divisor: int) -> Array:
    result: Array = -(-values // divisor)
    return result
