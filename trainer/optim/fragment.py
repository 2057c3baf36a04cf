"""The piece of a parameter that a rank updates, and which parameters decay."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Fragment:
    """The piece of one parameter that this rank updates.

    Attributes:
        name: The parameter's name in the model.
        index: The parameter's number among those the optimizer was given.
        start: First element, counted in the flattened parameter.
        numel: Elements in the piece.
        owner: Number of the tensor that holds it, among the tensors this rank updates.
        owner_start: First element, counted in that tensor flattened.
        decays: Whether weight decay applies.
    """

    name: str
    index: int
    start: int
    numel: int
    owner: int
    owner_start: int
    decays: bool

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The piece as a view [numel] into tensors shaped like those this rank updates (weights, gradients, ...)."""
        return tensors[self.owner].view(-1).narrow(0, self.owner_start, self.numel)


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices, not to biases and LayerNorm (google-research/bert `optimization.py`).

    Decided by name and checked by shape: what is excluded by name is one-dimensional in BERT and nothing else is.
    """
    module, _, kind = name.rpartition(".")
    excluded = kind == "bias" or module.rpartition(".")[2].lower().endswith("norm")
    return not excluded and parameter.ndim >= 2
