"""Says at which positions of the stream an instance is read: rules 1, 2, 3 and 7 the other way.

docs/order.md has the rules. Everything here is a pure function of the order of the stream.
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

    An epoch reads every instance of its pass once. Skipped positions are returned as well.

    Args:
        order: The order of the stream, of which the pass of the epoch must be known.
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
    """Returns the places in an epoch of instances, whose numbers count along its shards.

    It undoes rule 2 and the end of rule 3: the instance at depth k of lane l has place k K + l.
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
    """Returns the stream positions of positions counted within a dataset (rule 7)."""
    if len(order.weights) == 1:
        return own_position
    period, num_drawn_MD = count_draws(order.weights)
    places = np.flatnonzero(np.diff(num_drawn_MD[:, dataset]))
    num_periods, draw = np.divmod(own_position, len(places))
    position: Array = num_periods * period + places[draw]
    return position
