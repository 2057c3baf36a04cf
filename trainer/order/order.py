"""Which instance stands where in the stream: pure functions of (shards, seed, weights, position).

docs/order.md states them as rules 1, 2, 3, 6 (skipped stretches) and 7; `share` has the others.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MAX_PERIOD = 10_000
Array = npt.NDArray[Any]
Stretch = tuple[int, int]
"""Stream positions from the first number to the second - 1."""


class ShardSize(NamedTuple):
    """A shard as the order sees it."""

    name: str
    instances: int


Passes = tuple[tuple[ShardSize, ...], ...]
"""The shards of every pass of one dataset, or of those known while its build still runs."""


@dataclass(frozen=True, eq=False)
class StreamOrder:
    """What the order is a function of, besides the position.

    Attributes:
        datasets: The passes of each. Runs name a dataset, and a shard, by its place in here.
        weights: The weight of each dataset, at least 1.
        seed: Random seed of the shard order.
        num_lanes: K; fixed for a whole stream.
        skipped: Positions that no batch takes; ascending, apart from each other.
    """

    datasets: tuple[Passes, ...]
    weights: tuple[int, ...]
    seed: int
    num_lanes: int
    skipped: tuple[Stretch, ...] = ()

    @cached_property
    def pass_instances(self) -> list[list[int]]:
        """N_i of every pass of every dataset."""
        return [
            [sum(shard.instances for shard in shards) for shards in passes]
            for passes in self.datasets
        ]


class Place(NamedTuple):
    """Where a position of one dataset is found (rule 3); `instance` counts through the epoch."""

    epoch: int
    pass_index: int
    lane: int
    depth: int
    instance: int


@dataclass(frozen=True)
class Spans:
    """Places start to stop - 1 of epochs, as steps take them.

    All are [E], by step, then dataset, epoch and place.

    Attributes:
        step: Counted from 0.
        dataset: Index into the stream's datasets.
        epoch: The epoch of that dataset.
        start: First place in the epoch.
        stop: One past the last.
        num_instances: Instances of the whole epoch.
    """

    step: Array
    dataset: Array
    epoch: Array
    start: Array
    stop: Array
    num_instances: Array


@dataclass(frozen=True)
class EpochShards:
    """One epoch's shards in their order: `shard` [S] in the pass, bounds [S+1] in instances."""

    shard: Array
    bounds: Array


def shard_order(seed: int, epoch: int, names: Sequence[str]) -> list[int]:
    """Rule 1: indices of the shards, sorted by the blake2b-128 of "seed/epoch/name"."""
    return sorted(
        range(len(names)),
        key=lambda i: hashlib.blake2b(
            f"{seed}/{epoch}/{names[i]}".encode(), digest_size=16
        ).digest(),
    )


def lane_start(num_instances: int, num_lanes: int, lane: int) -> int:
    """Rule 2: the first instance of a lane; lane = num_lanes gives the end of the last."""
    quotient, extra = divmod(num_instances, num_lanes)
    return lane * quotient + min(lane, extra)


def locate(pass_instances: Sequence[int], num_lanes: int, position: int) -> Place:
    """Rule 3: the place of one position of a dataset."""
    prefix = list(accumulate(pass_instances, initial=0))
    full, rest = divmod(position, prefix[-1])
    pass_index = bisect_right(prefix, rest) - 1
    depth, lane = divmod(rest - prefix[pass_index], num_lanes)
    start = lane_start(pass_instances[pass_index], num_lanes, lane)
    return Place(len(pass_instances) * full + pass_index, pass_index, lane, depth, start + depth)


def mixture_word(weights: Sequence[int]) -> list[int]:
    """Rule 7: the dataset of each place of one period: with it given, the one furthest behind.

    Of equal ones the first is taken.
    """
    period, drawn = sum(weights), [0] * len(weights)
    word = []
    for places in range(1, period + 1):
        behind = [
            weight * places - period * count for weight, count in zip(weights, drawn, strict=True)
        ]
        word.append(behind.index(max(behind)))
        drawn[word[-1]] += 1
    return word


def check_weights(weights: Sequence[int]) -> None:
    """Refuses weights that are no shares.

    Raises:
        ValueError: One is below 1, or their sum over their greatest common divisor is above
            MAX_PERIOD.
    """
    if min(weights) < 1:
        raise ValueError(f"weights {list(weights)}: each must be a whole number of at least 1")
    if sum(weights) // math.gcd(*weights) > MAX_PERIOD:
        raise ValueError(f"weights {list(weights)} add up to more than {MAX_PERIOD}; round them")


def own_position(weights: Sequence[int], dataset: int, position: int) -> int:
    """Rule 7: how many of the stream's first `position` positions draw from a dataset."""
    if len(weights) == 1:
        return position
    period, prefix = _count_draws(tuple(weights))
    full, rest = divmod(position, period)
    return full * int(prefix[-1, dataset]) + int(prefix[rest, dataset])


def next_stretches(skipped: Iterable[Stretch], position: int, count: int) -> list[Stretch]:
    """Rule 6: the next `count` positions that are not skipped, as stretches; at least one."""
    found = []
    for start, stop in skipped:
        if position < (end := min(start, position + count)):
            found.append((position, end))
            count -= end - position
        position = max(position, stop) if count else position
    return [*found, (position, position + count)] if count else found


def step_positions(
    skipped: Iterable[Stretch], position: int, global_batch: int, num_steps: int
) -> tuple[Array, Array]:
    """The first position of each of the next steps, and the one after its last; both [S]."""
    step, start, stop = _step_stretches(skipped, position, global_batch, num_steps)
    bounds = np.searchsorted(step, np.arange(num_steps + 1))
    return start[bounds[:-1]], stop[bounds[1:] - 1]


def step_spans(order: StreamOrder, position: int, global_batch: int, num_steps: int) -> Spans:
    """Where the instances of the next steps lie, by dataset, epoch and place."""
    step, start, stop = _step_stretches(order.skipped, position, global_batch, num_steps)
    parts = []
    for dataset, pass_instances in enumerate(order.pass_instances):
        own = (_own_positions(order.weights, dataset, each) for each in (start, stop))
        parts.append(_epoch_spans(dataset, pass_instances, step, *own))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    by_step = np.lexsort((columns[1], columns[0]))
    return Spans(*(column[by_step] for column in columns))


@lru_cache(maxsize=64)
def epoch_shards(order: StreamOrder, dataset: int, epoch: int) -> EpochShards:
    """The shards of an epoch of a dataset in their order, and where each begins and ends in it."""
    passes = order.datasets[dataset]
    shards = passes[epoch % len(passes)]
    indices = shard_order(order.seed, epoch, [shard.name for shard in shards])
    bounds = np.cumsum([0, *(shards[i].instances for i in indices)], dtype=np.int64)
    return EpochShards(np.array(indices, np.int64), bounds)


def expand(first: Array, last: Array) -> tuple[Array, Array]:
    """For each row every value from first to last: the row's index, and the value."""
    counts = last - first + 1
    row = np.repeat(np.arange(len(first)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - first, counts)


def _step_stretches(
    skipped: Iterable[Stretch], position: int, global_batch: int, num_steps: int
) -> tuple[Array, Array, Array]:
    """The positions of the next steps as stretches in order: step, start and stop of each."""
    start, stop = np.array(next_stretches(skipped, position, global_batch * num_steps), np.int64).T
    end = np.cumsum(stop - start)  # counted in instances, of which a step takes global_batch
    begin = end - (stop - start)
    row, step = expand(begin // global_batch, (end - 1) // global_batch)
    shift = (start - begin)[row]
    first = np.maximum(step * global_batch, begin[row])
    return step, first + shift, np.minimum((step + 1) * global_batch, end[row]) + shift


def _own_positions(weights: Sequence[int], dataset: int, position: Array) -> Array:
    period, prefix = _count_draws(tuple(weights))
    own: Array = position // period * prefix[-1, dataset] + prefix[position % period, dataset]
    return own


def _epoch_spans(
    dataset: int, pass_instances: Sequence[int], step: Array, start: Array, stop: Array
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """The columns of `Spans`: own positions start to stop - 1 of each step, cut at epochs."""
    size, prefix = np.array(pass_instances, np.int64), np.cumsum([0, *pass_instances])
    drawn = start < stop
    step, start, stop = step[drawn], start[drawn], stop[drawn]
    row, epoch = expand(_epoch_at(prefix, start), _epoch_at(prefix, stop - 1))
    begin = epoch // len(size) * prefix[-1] + prefix[epoch % len(size)]
    size = size[epoch % len(size)]
    first, end = np.maximum(start[row] - begin, 0), np.minimum(stop[row] - begin, size)
    return step[row], np.full(len(row), dataset), epoch, first, end, size


def _epoch_at(prefix: Array, position: Array) -> Array:
    """The epoch of a dataset's own positions; passes begin at `prefix` [P+1] of every cycle."""
    epoch: Array = position // prefix[-1] * (len(prefix) - 1)
    epoch += np.searchsorted(prefix[1:], position % prefix[-1], side="right")
    return epoch


@lru_cache(maxsize=8)
def _count_draws(weights: tuple[int, ...]) -> tuple[int, Array]:
    """The shortest period of the mixture, and how often each dataset is drawn before its positions.

    The counts are [M+1, D].
    """
    divisor = math.gcd(*weights)
    word = mixture_word([weight // divisor for weight in weights])
    drawn_MD = np.zeros((len(word) + 1, len(weights)), np.int64)
    drawn_MD[np.arange(1, len(word) + 1), word] = 1
    return len(word), np.cumsum(drawn_MD, axis=0)
