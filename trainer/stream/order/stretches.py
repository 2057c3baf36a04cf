"""Says which positions a step takes (rule 6 of docs/order.md).

A position exists unless it is in a skipped stretch or holds an instance that is left out. A step
takes the next positions that exist.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from trainer.stream.order.inverse import positions_in_epoch
from trainer.stream.order.order import Array, StreamOrder, Stretch, locate, own_position


class Span(NamedTuple):
    """Consecutive places of one epoch of one dataset that a step takes.

    Attributes:
        dataset: Index of the dataset in the mixture.
        epoch: Number of the epoch; it reads pass `epoch` mod the number of passes.
        start: First place in the epoch.
        stop: One past the last place.
        epoch_size: Number of instances of the epoch, N_i in docs/order.md.
    """

    dataset: int
    epoch: int
    start: int
    stop: int
    epoch_size: int


def next_stretches(order: StreamOrder, position: int, count: int) -> list[Stretch]:
    """Returns the next `count` positions that exist, as stretches in ascending order.

    A position exists unless it is in a skipped stretch or holds an instance that is left out.

    Args:
        order: The order of the stream.
        position: The first position that may be returned.
        count: Number of positions to return, at least 1.
    """
    stretches: list[Stretch] = []
    while count:
        window = unskipped_stretches(order.skipped, position, count)
        existing = remove_left_out(order, window)
        count -= sum(stop - start for start, stop in existing)
        position = window[-1][1]
        stretches += existing
    return stretches


def unskipped_stretches(skipped: Iterable[Stretch], position: int, count: int) -> list[Stretch]:
    """Returns the next `count` positions that are not skipped, as stretches in ascending order.

    Args:
        skipped: The skipped stretches. They must ascend and not touch.
        position: The first position that may be returned.
        count: Number of positions to return, at least 1.
    """
    stretches = []
    for skip_start, skip_stop in skipped:
        stop = min(skip_start, position + count)
        if position < stop:
            stretches.append((position, stop))
            count -= stop - position
        if count:
            position = max(position, skip_stop)
    if count:
        stretches.append((position, position + count))
    return stretches


def remove_left_out(order: StreamOrder, stretches: Iterable[Stretch]) -> list[Stretch]:
    """Removes the positions that hold left-out instances from some stretches.

    A stretch is a range of positions. One that holds a left-out instance is cut there, so that
    several shorter ones can remain of it, or none.

    Args:
        order: The order of the stream. Every pass that is read at these positions must be in it.
        stretches: The stretches. They must ascend and not touch.

    Returns:
        The stretches that remain, in ascending order.
    """
    if not order.left_out:
        return list(stretches)
    remaining = []
    for start, stop in stretches:
        bounds = [start - 1, *left_out_between(order, start, stop).tolist(), stop]
        remaining += [
            (before + 1, after) for before, after in pairwise(bounds) if before + 1 < after
        ]
    return remaining


def left_out_between(order: StreamOrder, start: int, stop: int) -> Array:
    """Returns the positions from `start` to `stop` - 1 that hold a left-out instance.

    The left-out positions of an epoch are computed once and kept, so that later calls only look
    them up.

    Args:
        order: The order of the stream. Every pass that is read at these positions must be in it.
        start: First position to look at.
        stop: One past the last position to look at.

    Returns:
        The positions in ascending order, int64 [I].
    """
    found = []
    for dataset, epoch in _epochs_between(order, start, stop):
        positions = _left_out_of_epoch(order, dataset, epoch)
        first, end = np.searchsorted(positions, [start, stop])
        if first < end:
            found.append(positions[first:end])
    if not found:
        return np.empty(0, np.int64)
    return found[0] if len(found) == 1 else np.sort(np.concatenate(found))


def first_left_out(order: StreamOrder, stop: int) -> int | None:
    """Returns the first position that holds a left-out instance, or None if there is none.

    Positions in skipped stretches do not count.

    Args:
        order: The order of the stream. Every pass that is read before `stop` must be in it.
        stop: Only positions before this one are considered.
    """
    candidates = []
    for dataset in range(len(order.left_out)):
        for _, epoch in _epochs_between(order, 0, stop, [dataset]):
            positions = _left_out_of_epoch(order, dataset, epoch)
            positions = positions[(positions < stop) & ~is_in(order.skipped, positions)]
            if len(positions):
                candidates.append(int(positions[0]))
                break
    return min(candidates, default=None)


def is_in(stretches: Iterable[Stretch], positions: Array) -> Array:
    """Returns for each of I positions whether one of the stretches has it, bool [I]."""
    is_inside = np.zeros(len(positions), np.bool_)
    for start, stop in stretches:
        is_inside |= (start <= positions) & (positions < stop)
    return is_inside


def step_spans(order: StreamOrder, position: int, global_batch: int) -> Iterator[Span]:
    """Yields the places in epochs whose instances one step takes, as spans.

    The spans are in the order of datasets, and of one dataset in the order of the stream.

    Args:
        order: The order of the stream.
        position: Stream position where the step begins.
        global_batch: Instances of the step over all ranks.
    """
    stretches = next_stretches(order, position, global_batch)
    for dataset, pass_sizes in enumerate(order.pass_instances):
        for stretch_start, stretch_stop in stretches:
            begin = own_position(order.weights, dataset, stretch_start)
            end = own_position(order.weights, dataset, stretch_stop)
            while begin < end:
                epoch, start = locate(pass_sizes, begin)
                epoch_size = pass_sizes[epoch % len(pass_sizes)]
                stop = min(epoch_size, start + end - begin)
                yield Span(dataset, epoch, start, stop, epoch_size)
                begin += stop - start


def _epochs_between(
    order: StreamOrder, start: int, stop: int, datasets: Iterable[int] | None = None
) -> Iterator[tuple[int, int]]:
    """Yields the epochs that the positions from `start` up to `stop` read, as (dataset, epoch).

    Args:
        order: The order of the stream.
        start: First position.
        stop: One past the last position.
        datasets: The datasets to look at; None for all.
    """
    for dataset in range(len(order.datasets)) if datasets is None else datasets:
        begin = own_position(order.weights, dataset, start)
        end = own_position(order.weights, dataset, stop)
        if begin < end:
            first, _ = locate(order.pass_instances[dataset], begin)
            last, _ = locate(order.pass_instances[dataset], end - 1)
            for epoch in range(first, last + 1):
                yield dataset, epoch


@lru_cache(maxsize=64)
def _left_out_of_epoch(order: StreamOrder, dataset: int, epoch: int) -> Array:
    """Returns the positions of the left-out instances of an epoch, ascending, int64 [I]."""
    passes = order.left_out[dataset]
    instances = passes[epoch % len(passes)]
    return np.sort(positions_in_epoch(order, dataset, epoch, instances.shard, instances.row))
