"""Computes the positions of the stream at which given instances are read.

order.py applies rules 1, 2, 3 and 7 of docs/order.md from a position to its instance; this file
applies them from an instance to its positions. Everything here is a pure function of the order of
the stream.
"""

import numpy as np

from trainer.stream.order.order import (
    Array,
    StreamOrder,
    count_draws,
    epoch_shards,
    lane_start,
)


def positions_in_epoch(
    order: StreamOrder, dataset: int, epoch: int, shard: Array, row: Array
) -> Array:
    """Returns the stream positions at which one epoch of a dataset reads some instances.

    An epoch reads every instance of its pass once, so each instance has one position. It is
    returned even if the stream skips it.

    Args:
        order: The order of the stream. It must have the pass that the epoch reads.
        dataset: Index of the dataset in the mixture.
        epoch: Number of the epoch; it reads pass `epoch` mod the number of passes.
        shard: Index of each instance's shard in that pass, int64 [I].
        row: Row of each instance in its shard, int64 [I].

    Returns:
        The position of each instance, int64 [I].
    """
    indices, bounds = epoch_shards(order, dataset, epoch)
    start_of_shard = np.empty(len(indices), np.int64)
    start_of_shard[indices] = bounds[:-1]
    place = _place_of(start_of_shard[shard] + row, int(bounds[-1]), order.num_lanes)

    sizes = order.pass_instances[dataset]
    num_rounds, pass_index = divmod(epoch, len(sizes))
    own_start = num_rounds * sum(sizes) + sum(sizes[:pass_index])
    return _stream_position(order, dataset, own_start + place)


def _place_of(instance: Array, num_instances: int, num_lanes: int) -> Array:
    """Returns the places that instances have in their epoch, int64 [I].

    This is the inverse of rule 2 and of the end of rule 3: the instance at depth k of lane l has
    place k K + l, where K is the number of lanes.

    Args:
        instance: Number of each instance, counted along the shards in the order of the epoch,
            int64 [I].
        num_instances: Number of instances of the epoch.
        num_lanes: The number of lanes K.
    """
    quotient, num_longer = divmod(num_instances, num_lanes)
    num_in_longer = num_longer * (quotient + 1)
    lane = np.where(
        instance < num_in_longer,
        instance // (quotient + 1),
        num_longer + (instance - num_in_longer) // max(1, quotient),
    )
    depth = instance - lane_start(np.array(num_instances), num_lanes, lane)
    place: Array = depth * num_lanes + lane
    return place


def _stream_position(order: StreamOrder, dataset: int, own_position: Array) -> Array:
    """Converts positions that are counted within one dataset to positions of the stream (rule 7).

    Args:
        order: The order of the stream.
        dataset: Index of the dataset in the mixture.
        own_position: Positions counted within the dataset, as `own_position` of order.py returns
            them, int64 [I].
    """
    if len(order.weights) == 1:
        return own_position
    period, num_drawn_MD = count_draws(order.weights)
    places = np.flatnonzero(np.diff(num_drawn_MD[:, dataset]))
    num_periods, draw = np.divmod(own_position, len(places))
    position: Array = num_periods * period + places[draw]
    return position
