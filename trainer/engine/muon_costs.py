"""Counts what Muon adds to a step: products of matrices, and parts that the ranks exchange.

This file imports no torch, so that `plan` can use it.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

from trainer.engine.partitions import find_parts
from trainer.model.config import BertConfig, parameter_shapes
from trainer.optim.owners import choose_owners, is_muons, orthogonalising_flops


@dataclass(frozen=True)
class MuonCosts:
    """What Muon adds to a step on the rank, or the link, where it adds most.

    Attributes:
        flops: Floating-point operations that orthogonalise the matrices of a rank.
        sent: Values that a rank sends: parts of matrices that other ranks own, and updates of parts
            that other ranks hold.
        passing: Values that pass a link in one direction, in both exchanges together. The link is
            that of one rank, or that of a node to all other nodes.
        exchanged: Values that a rank has in memory at once because matrices are split.
    """

    flops: int
    sent: int = 0
    passing: int = 0
    exchanged: int = 0


@cache
def count_muon_costs(
    config: BertConfig, zero_stage: int, ranks: int, bucket_elements: int, node_size: int = 1
) -> MuonCosts:
    """Returns what Muon adds to a step.

    Args:
        config: The model.
        zero_stage: ZeRO stage, 0 to 2. Without ZeRO every rank orthogonalises all matrices.
        ranks: Number of ranks.
        bucket_elements: The most elements of a bucket of gradients.
        node_size: Number of ranks of a node.
    """
    parameters = parameter_shapes(config)
    shapes = {
        index: shape
        for index, (name, shape) in enumerate(parameters.items())
        if is_muons(name, shape)
    }
    if zero_stage == 0 or ranks == 1:
        return MuonCosts(sum(map(orthogonalising_flops, shapes.values())))
    sizes = [math.prod(shape) for shape in parameters.values()]
    parts = find_parts(sizes, bucket_elements, ranks)
    owners = choose_owners({index: list(parts[index]) for index in shapes}, shapes)
    flops = Counter[int]()
    leaving = Counter[tuple[str, int]]()
    arriving = Counter[tuple[str, int]]()
    exchanged = Counter[int]()
    for index, owner in owners.items():
        flops[owner] += orthogonalising_flops(shapes[index])
        if len(parts[index]) == 1:
            continue
        exchanged[owner] += 2 * sizes[index]
        for rank, numel in parts[index].items():
            exchanged[rank] += numel
            if rank != owner:
                leaving["rank", rank] += numel
                arriving["rank", owner] += numel
            if rank // node_size != owner // node_size:
                leaving["node", rank // node_size] += numel
                arriving["node", owner // node_size] += numel
    # In the second exchange updates take the ways of the first one back.
    both = leaving + arriving
    return MuonCosts(
        flops=max(flops.values()),
        sent=max((both["rank", rank] for rank in range(ranks)), default=0),
        passing=2 * max([0, *leaving.values(), *arriving.values()]),
        exchanged=max(exchanged.values(), default=0),
    )
