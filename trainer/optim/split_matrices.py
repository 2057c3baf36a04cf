"""Brings matrices that ZeRO has split together on one rank, and hands out their updates.

Under ZeRO-1 and 2 the border between the partitions of two ranks can be inside a matrix. The matrix
is then split: each of several ranks holds, and updates, a part of it. One of them is its owner
(trainer/optim/owners.py). The others send their parts to the owner, which computes the update of
the whole matrix, and sends them the update of their parts. So no work is done twice.

Each of the two exchanges is a single collective for all split matrices of the model. A rank sends
each part once, and receives its update once. Megatron-LM's layer-sharded Muon works the same way.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed
from torch import Tensor

from trainer.optim.owners import choose_owners
from trainer.optim.sharded import Fragment


@dataclass(frozen=True)
class SplitMatrices:
    """The parts of split matrices that this rank exchanges with each rank, itself included.

    Attributes:
        outgoing: For each rank, the parts that this rank holds of the matrices that the other owns.
        incoming: For each rank, the parts that the other holds of the matrices that this rank owns.
        empty: A tensor [0] of the number format in which values are sent, on the device.
    """

    outgoing: Sequence[Sequence[Fragment]]
    incoming: Sequence[Sequence[Fragment]]
    empty: Tensor

    def collect(self, parts: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Brings the matrices together on their owners; all ranks have to call it together.

        Args:
            parts: For each split matrix that this rank holds a part of, by its index among the
                parameters, the values of the part [numel].

        Returns:
            The values of each matrix that this rank owns, flattened, by the same indices.
        """
        sent = [parts[fragment.index] for fragment in chain(*self.outgoing)]
        received = self._exchange(sent, self.outgoing, self.incoming)
        pieces = defaultdict[int, list[Tensor]](list)
        # Ranks hold the parts of a matrix in the order in which they follow each other in it.
        for fragment, piece in zip(chain(*self.incoming), received, strict=True):
            pieces[fragment.index].append(piece)
        return {index: torch.cat(of_matrix) for index, of_matrix in pieces.items()}

    def hand_out(self, updates: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Sends each part of the updates to the rank that holds it; all ranks have to call it.

        Args:
            updates: The update of each matrix that this rank owns, flattened, by the same indices
                as the result of `collect`.

        Returns:
            The update [numel] of each part that this rank holds of a split matrix.
        """
        sent = [
            updates[fragment.index].narrow(0, fragment.start, fragment.numel)
            for fragment in chain(*self.incoming)
        ]
        received = self._exchange(sent, self.incoming, self.outgoing)
        indices = [fragment.index for fragment in chain(*self.outgoing)]
        return dict(zip(indices, received, strict=True))

    def _exchange(
        self,
        sent: Sequence[Tensor],
        outgoing: Sequence[Sequence[Fragment]],
        incoming: Sequence[Sequence[Fragment]],
    ) -> Sequence[Tensor]:
        """Sends a flat tensor for each outgoing part, and returns one for each incoming part.

        Args:
            sent: The values of each part of `outgoing`, in order.
            outgoing: The parts that go to each rank.
            incoming: The parts that come from each rank.
        """
        values = torch.cat([self.empty, *(tensor.to(self.empty.dtype) for tensor in sent)])
        sizes = [fragment.numel for fragment in chain(*incoming)]
        received = self.empty.new_empty(sum(sizes))
        torch.distributed.all_to_all_single(
            received, values, _sum_sizes(incoming), _sum_sizes(outgoing)
        )
        return received.split_with_sizes(sizes)


def _sum_sizes(parts_of_ranks: Sequence[Sequence[Fragment]]) -> list[int]:
    """Returns the number of values that are exchanged with each rank."""
    return [sum(fragment.numel for fragment in parts) for parts in parts_of_ranks]


def find_split_matrices(
    fragments: Sequence[Fragment], shapes: Mapping[int, Sequence[int]], empty: Tensor
) -> SplitMatrices:
    """Returns what this rank exchanges; all ranks have to call it together.

    Args:
        fragments: The parts of parameters that this rank holds.
        shapes: The shape of each matrix, by its index among the parameters.
        empty: A tensor [0] of the number format in which values shall be sent, on the device.
    """
    rank = torch.distributed.get_rank()
    matrices = [fragment for fragment in fragments if fragment.index in shapes]
    of_ranks = [matrices] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(of_ranks, matrices)
    holders = defaultdict[int, list[int]](list)
    for holder, held in enumerate(of_ranks):
        for fragment in held:
            holders[fragment.index].append(holder)
    owners = choose_owners(holders, shapes)
    split = {index for index, ranks in holders.items() if len(ranks) > 1}

    def owned_by(owner: int, held: Sequence[Fragment]) -> list[Fragment]:
        """Returns those of some parts that are of split matrices which a rank owns."""
        return [part for part in held if part.index in split and owners[part.index] == owner]

    return SplitMatrices(
        outgoing=[owned_by(owner, matrices) for owner in range(len(of_ranks))],
        incoming=[owned_by(rank, held) for held in of_ranks],
        empty=empty,
    )
