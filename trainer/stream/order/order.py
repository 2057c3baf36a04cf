"""Says which instance is at which position of the stream: rules 1, 2, 3 and 7 of docs/order.md.

Everything here is a pure function of shards, seed, weights and position. stretches.py says which
positions a step takes (rule 6), and share.py which rows of a step a rank reads (rules 4, 5 and 8).
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.shards.records import Shard

MAX_PERIOD = 10_000
"""The largest sum of a mixture's weights, after division by their greatest common divisor."""

Array = npt.NDArray[Any]
Stretch = tuple[int, int]
"""A range of stream positions: the first one, and one past the last one."""

Passes = tuple[tuple[Shard, ...], ...]
"""The shards of each pass of one dataset. While its build goes on, only known passes are in it."""


class PassInstances(NamedTuple):
    """Some instances of one pass, in any order; both arrays are int64 [I].

    Attributes:
        shard: Index of each instance's shard in the pass.
        row: Row of each instance in its shard.
    """

    shard: Array
    row: Array


@dataclass(frozen=True, eq=False)
class StreamOrder:
    """The facts that decide which instance is at each position of the stream.

    Attributes:
        datasets: The passes of each dataset. Only the names of their shards and the numbers of
            instances matter.
        weights: The weight of each dataset in the mixture.
        seed: Seed of the order of shards.
        num_lanes: The number of lanes K, the same for the whole stream.
        skipped: Ranges of positions that no batch takes. They ascend, and between two of them there
            is at least one position.
        left_out: For each dataset and each of its passes, the instances that no batch takes in any
            epoch. Empty if every instance is read.
    """

    datasets: tuple[Passes, ...]
    weights: tuple[int, ...]
    seed: int
    num_lanes: int
    skipped: tuple[Stretch, ...] = ()
    left_out: tuple[tuple[PassInstances, ...], ...] = ()

    @cached_property
    def pass_instances(self) -> list[list[int]]:
        """Number of instances N_i of every pass i, in one list per dataset."""
        return [
            [sum(shard.instances for shard in shards) for shards in passes]
            for passes in self.datasets
        ]


def shard_order(seed: int, epoch: int, names: Sequence[str]) -> list[int]:
    """Returns the indices of an epoch's shards in the order of that epoch (rule 1).

    Shards are sorted by the 128-bit BLAKE2b hash of "seed/epoch/name".

    Args:
        seed: Seed of the stream.
        epoch: Number of the epoch.
        names: Names of the shards, relative to the dataset.
    """

    def digest(index: int) -> bytes:
        text = f"{seed}/{epoch}/{names[index]}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    return sorted(range(len(names)), key=digest)


def lane_start(num_instances: Array, num_lanes: int, lane: Array) -> Array:
    """Returns the first instance of each lane, counted from the start of its epoch (rule 2).

    Args:
        num_instances: Instances of the epoch, int64; its shape broadcasts with that of `lane`.
        num_lanes: The number of lanes K.
        lane: Numbers of lanes, int64.
    """
    start: Array = lane * (num_instances // num_lanes) + np.minimum(lane, num_instances % num_lanes)
    return start


def locate(pass_instances: Sequence[int], position: int) -> tuple[int, int]:
    """Returns the epoch that a position within a dataset belongs to, and the place in it (rule 3).

    Args:
        pass_instances: Number of instances of each pass of the dataset.
        position: A position counted within the dataset, as `own_position` returns it.

    Returns:
        Number of the epoch; and the place, counted from the start of the epoch.
    """
    pass_bounds = list(accumulate(pass_instances, initial=0))
    num_rounds, place_in_round = divmod(position, pass_bounds[-1])
    pass_index = bisect_right(pass_bounds, place_in_round) - 1
    epoch = len(pass_instances) * num_rounds + pass_index
    return epoch, place_in_round - pass_bounds[pass_index]


def mixture_word(weights: Sequence[int]) -> list[int]:
    """Returns the dataset that each position of one period draws from, as an index (rule 7).

    The period is the sum of the weights. Each position goes to the dataset that would be furthest
    behind its share if it did not get this position, and of equals to the first one.
    """
    period = sum(weights)
    num_drawn = [0] * len(weights)
    word = []
    for num_places in range(1, period + 1):
        deficits = [
            weight * num_places - period * count
            for weight, count in zip(weights, num_drawn, strict=True)
        ]
        dataset = deficits.index(max(deficits))
        word.append(dataset)
        num_drawn[dataset] += 1
    return word


def check_weights(weights: Sequence[int]) -> None:
    """Raises a ValueError if a weight is below 1 or the period is above MAX_PERIOD."""
    if min(weights) < 1:
        raise ValueError(f"weights {list(weights)}: each must be a whole number of at least 1")
    if sum(weights) // math.gcd(*weights) > MAX_PERIOD:
        raise ValueError(f"weights {list(weights)} add up to more than {MAX_PERIOD}; round them")


def own_position(weights: Sequence[int], dataset: int, position: int) -> int:
    """Returns how many of the stream's first `position` positions draw from a dataset (rule 7).

    This is also the position, counted within that dataset, of the next instance drawn from it.

    Args:
        weights: Weight of each dataset of the mixture.
        dataset: Index of the dataset.
        position: Position in the stream.
    """
    if len(weights) == 1:
        return position
    period, num_drawn_MD = count_draws(tuple(weights))
    num_periods, place = divmod(position, period)
    return num_periods * int(num_drawn_MD[-1, dataset]) + int(num_drawn_MD[place, dataset])


@lru_cache(maxsize=64)
def epoch_shards(order: StreamOrder, dataset: int, epoch: int) -> tuple[Array, Array]:
    """Returns the shards of an epoch in the order in which it reads them, and where each begins.

    Args:
        order: The order of the stream.
        dataset: Index of the dataset.
        epoch: Number of the epoch.

    Returns:
        For each shard its index in the pass, int64 [S]. And for each shard the number of instances
        of the epoch before it, with the number of all its instances at the end, int64 [S+1].
    """
    passes = order.datasets[dataset]
    shards = passes[epoch % len(passes)]
    indices = shard_order(order.seed, epoch, [shard.name for shard in shards])
    bounds = np.cumsum([0, *(shards[i].instances for i in indices)], dtype=np.int64)
    return np.array(indices, np.int64), bounds


@lru_cache(maxsize=8)
def count_draws(weights: tuple[int, ...]) -> tuple[int, Array]:
    """Returns the period M of a mixture, and the running counts of draws within one period.

    The counts are int64 [M+1, D]: row m says how often each of the D datasets is drawn by the first
    m positions of a period.
    """
    divisor = math.gcd(*weights)
    word = mixture_word([weight // divisor for weight in weights])
    num_drawn_MD = np.zeros((len(word) + 1, len(weights)), np.int64)
    num_drawn_MD[np.arange(1, len(word) + 1), word] = 1
    return len(word), np.cumsum(num_drawn_MD, axis=0)
