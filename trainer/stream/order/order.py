"""Which instance stands where in the stream: rules 1, 2, 3, 6 and 7 of docs/order.md.

All are pure functions of shards, seed, weights and position; `share` has the other rules.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.records import Shard

MAX_PERIOD = 10_000
Array = npt.NDArray[Any]
Stretch = tuple[int, int]
"""Stream positions from the first number to the second - 1."""

Passes = tuple[tuple[Shard, ...], ...]
"""The shards of every pass of one dataset, or of those known while its build still runs."""


@dataclass(frozen=True, eq=False)
class StreamOrder:
    """What the order is a function of, besides the position.

    Attributes:
        datasets: The passes of each, of whose shards only name and instances count.
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


def shard_order(seed: int, epoch: int, names: Sequence[str]) -> list[int]:
    """Rule 1: indices of the shards, sorted by the blake2b-128 of "seed/epoch/name"."""

    def digest(index: int) -> bytes:
        text = f"{seed}/{epoch}/{names[index]}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    return sorted(range(len(names)), key=digest)


def lane_start(num_instances: Array, num_lanes: int, lane: Array) -> Array:
    """Rule 2: the first instance of lanes, of epochs of so many instances."""
    start: Array = lane * (num_instances // num_lanes) + np.minimum(lane, num_instances % num_lanes)
    return start


def locate(pass_instances: Sequence[int], position: int) -> tuple[int, int]:
    """Rule 3: the epoch of a dataset's own position, and its place p in there."""
    prefix = list(accumulate(pass_instances, initial=0))
    full, rest = divmod(position, prefix[-1])
    pass_index = bisect_right(prefix, rest) - 1
    return len(pass_instances) * full + pass_index, rest - prefix[pass_index]


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
    """Refuses, by a ValueError, a weight below 1, and weights whose period is above MAX_PERIOD."""
    if min(weights) < 1:
        raise ValueError(f"weights {list(weights)}: each must be a whole number of at least 1")
    if sum(weights) // math.gcd(*weights) > MAX_PERIOD:
        raise ValueError(f"weights {list(weights)} add up to more than {MAX_PERIOD}; round them")


def own_position(weights: Sequence[int], dataset: int, position: int) -> int:
    """Rule 7: how many of the stream's first `position` positions draw from a dataset."""
    if len(weights) == 1:
        return position
    period, drawn_MD = _count_draws(tuple(weights))
    full, rest = divmod(position, period)
    return full * int(drawn_MD[-1, dataset]) + int(drawn_MD[rest, dataset])


def next_stretches(skipped: Iterable[Stretch], position: int, count: int) -> list[Stretch]:
    """Rule 6: the next `count` positions that are not skipped, as stretches; at least one."""
    found = []
    for start, stop in skipped:
        if position < (end := min(start, position + count)):
            found.append((position, end))
            count -= end - position
        position = max(position, stop) if count else position
    return [*found, (position, position + count)] if count else found


def step_spans(
    order: StreamOrder, position: int, global_batch: int
) -> Iterator[tuple[int, int, int, int, int]]:
    """Where a step's instances lie: dataset, epoch, first place, the one after the last, N_i."""
    stretches = next_stretches(order.skipped, position, global_batch)
    for dataset, sizes in enumerate(order.pass_instances):
        for stretch in stretches:
            begin, end = (own_position(order.weights, dataset, each) for each in stretch)
            while begin < end:
                epoch, place = locate(sizes, begin)
                size = sizes[epoch % len(sizes)]
                stop = min(size, place + end - begin)
                yield dataset, epoch, place, stop, size
                begin += stop - place


@lru_cache(maxsize=64)
def epoch_shards(order: StreamOrder, dataset: int, epoch: int) -> tuple[Array, Array]:
    """The shards [S] of an epoch in their order, and where each begins and the last ends [S+1]."""
    passes = order.datasets[dataset]
    shards = passes[epoch % len(passes)]
    indices = shard_order(order.seed, epoch, [shard.name for shard in shards])
    bounds = np.cumsum([0, *(shards[i].instances for i in indices)], dtype=np.int64)
    return np.array(indices, np.int64), bounds


@lru_cache(maxsize=8)
def _count_draws(weights: tuple[int, ...]) -> tuple[int, Array]:
    """The period M of a mixture, and how often each dataset is drawn before its places [M+1, D]."""
    divisor = math.gcd(*weights)
    word = mixture_word([weight // divisor for weight in weights])
    drawn_MD = np.zeros((len(word) + 1, len(weights)), np.int64)
    drawn_MD[np.arange(1, len(word) + 1), word] = 1
    return len(word), np.cumsum(drawn_MD, axis=0)
