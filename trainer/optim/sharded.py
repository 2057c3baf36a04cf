"""One base for every optimizer here: it updates what this rank owns.

Under ZeRO DeepSpeed hands it one flat fp32 partition. Clipping, norms of single tensors and weight
decay need the parameters back: a `Fragment` is a parameter's piece in the partition. All P
parameters form one group, as ZeRO calls `step` once per group and a global norm must see all.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Parameter

from trainer.optim.settings import OptimizerSettings


@dataclass(frozen=True)
class Fragment:
    """A parameter's piece that this rank updates: it begins at `start` of the flattened parameter.

    It lies at `owner_start` of the flattened tensor number `owner` of those that this rank updates.
    """

    name: str
    index: int
    start: int
    numel: int
    owner: int
    owner_start: int
    decays: bool

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The piece as a view [numel] into tensors shaped like those this rank updates."""
        return tensors[self.owner].view(-1).narrow(0, self.owner_start, self.numel)


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies, by name as in google-research/bert, and by shape."""
    module, _, kind = name.rpartition(".")
    excluded = kind == "bias" or module.rpartition(".")[2].lower().endswith("norm")
    return not excluded and parameter.ndim >= 2


class ShardedOptimizer(torch.optim.Optimizer):
    """Clips to a global norm; subclasses say how weights move, with states by their names."""

    state_names: tuple[str, ...] = ()
    # As torch wraps it, the first optimizer imports torch._dynamo, for a second, only to keep it
    # away from here.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)

    def __init__(
        self, parameters: Iterable[tuple[str, Parameter]], settings: OptimizerSettings | None = None
    ) -> None:
        """Takes parameters by name before DeepSpeed flattens them."""
        self.settings = settings or OptimizerSettings()
        self._parameters = {name: each for name, each in parameters if each.requires_grad}
        self.decays_P = torch.tensor([decays(*each) for each in self._parameters.items()])
        self._partitions: list[Tensor] | None = None
        self._carried: Tensor | None = None
        self._views: dict[str, tuple[list[int], list[Tensor]]] = {}
        self.norm_limit = math.inf  # a gradient whose norm is not below this moves nothing
        self.num_updates = 0
        self.is_clipped = False  # the gradient of the last update
        self.grad_squared_norms_P: Tensor | None = None
        self.grad_norm = math.nan  # of the last gradient before clipping, the same everywhere
        super().__init__(list(self._parameters.values()), {"lr": 0.0})

    @property
    def owned(self) -> list[Tensor]:
        """What this rank updates in fp32: a flat partition under ZeRO, else all parameters."""
        if self._partitions is not None:
            return self._partitions
        assert len(self.param_groups) == 1, "clipping needs all parameters in one group"
        tensors: list[Tensor] = self.param_groups[0]["params"]
        return tensors

    @property
    def is_partitioned(self) -> bool:
        """Whether ZeRO has replaced the parameters by this rank's partition of them."""
        is_mapped = any(hasattr(each, "_hp_mapping") for each in self._parameters.values())
        return is_mapped or self._partitions is not None

    @property
    def has_partitioned_weights(self) -> bool:
        """Whether a rank's model holds only its part of each weight, as under ZeRO-3."""
        return self._partitions is not None

    @property
    def asks_other_ranks(self) -> bool:
        """Whether norms of whole tensors take an all-reduce."""
        return self.is_partitioned and torch.distributed.get_world_size() > 1

    def adopt(self, partitions: Sequence[Tensor]) -> None:
        """Takes what ZeRO-3 lets this rank update; `param_groups` has it in a step only."""
        assert len(partitions) == 1, "clipping needs all parameters in one sub-group"
        self._partitions = list(partitions)

    @cached_property
    def fragments(self) -> list[Fragment]:
        """The pieces this rank updates, in parameters' order; fixed once DeepSpeed has started."""
        return list(self._find_fragments())

    def tensors(self, name: str) -> list[Tensor]:
        """A state, or the weights for "fp32", shaped like `owned`; missing states become zeros."""
        if name == "fp32":
            return self.owned
        assert name in self.state_names, f"{type(self).__name__} has no state {name}"
        for tensor in self.owned:
            if name not in self.state[tensor]:
                self.state[tensor][name] = tensor.new_zeros(tensor.shape)
        return [self.state[tensor][name] for tensor in self.owned]

    def views(self, name: str) -> list[Tensor]:
        """The `pieces` of what `tensors` gives; kept, and made anew where a tensor has moved."""
        tensors = self.tensors(name)
        places = [tensor.data_ptr() for tensor in tensors]
        if self._views.get(name, ([], []))[0] != places:
            self._views[name] = places, self.pieces(tensors)
        return self._views[name][1]

    @cached_property
    def index(self) -> Tensor:
        """`Fragment.index` of each of `fragments`, int64 on the device."""
        places = [fragment.index for fragment in self.fragments]
        return torch.tensor(places, dtype=torch.int64, device=self.owned[0].device)

    def reset(self) -> None:
        """Forgets the states and the number of updates, for a phase that starts afresh."""
        self.state.clear()
        self._views.clear()
        self.num_updates = 0

    def metrics(self) -> dict[str, float]:
        """What the last update says of itself, for the log; equal on all ranks."""
        return {}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next update."""
        self.param_groups[0]["lr"] = learning_rate

    def carry(self, sums: Tensor) -> None:
        """Lets float64 sums ride along with the next step's all-reduce, which adds them up."""
        self._carried = sums

    def has_arrived(self) -> bool:
        """Whether what was carried was added up: not without a step that asked others."""
        arrived, self._carried = self._carried is None, None
        return arrived

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Clips and updates; a norm not finite or not below `norm_limit` changes nothing."""
        assert closure is None, "DeepSpeed passes no closure"
        whole = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
            for tensor in self.owned
        ]
        gradients = self.pieces(whole)
        self.grad_squared_norms_P = self._measure(gradients)
        for name in ("fp32", *self.state_names):
            self.views(name)  # made while a GPU is still busy: what comes next waits for it
        norm = self.grad_squared_norms_P.sum().sqrt()
        self.grad_norm = float(norm)  # the step's one wait for the device
        if not self.grad_norm < self.norm_limit:  # NaN is below nothing
            return
        self.is_clipped = 0 < self.settings.max_grad_norm < self.grad_norm
        self.num_updates += 1
        divisor = norm / self.settings.max_grad_norm if self.is_clipped else None
        self._update(gradients, divisor)

    @torch.no_grad()
    def squared_norms(self, *pieces: Sequence[Tensor]) -> Tensor:
        """Squared L2 norms of whole parameters from every rank's pieces, with one all-reduce.

        Takes lists in the order of `fragments`; fp32 [P] for one, [len(pieces), P] for several.
        """
        norms = torch.zeros(len(pieces), len(self._parameters), device=self.index.device)
        if self.fragments:
            for row, tensors in zip(norms, pieces, strict=True):
                row[self.index] = torch.stack(torch._foreach_norm(list(tensors))).square()
        if self.asks_other_ranks:
            nothing = norms.new_zeros(0, dtype=torch.float64)
            carried = nothing if self._carried is None else self._carried
            everything = torch.cat([norms.double().flatten(), carried])
            torch.distributed.all_reduce(everything)
            norms.copy_(everything[: norms.numel()].view_as(norms))
            carried.copy_(everything[norms.numel() :])
            self._carried = None
        return norms[0] if len(pieces) == 1 else norms

    def pieces(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The fragments of tensors shaped like `owned`, as views, in the order of `fragments`."""
        return [fragment.of(tensors) for fragment in self.fragments]

    def _measure(self, gradients: list[Tensor]) -> Tensor:
        """[P] squared norms of the gradient before clipping; changes nothing."""
        return self.squared_norms(gradients)

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        """Moves the weights by gradients, in fragments' order, which it may overwrite."""
        raise NotImplementedError

    def _find_fragments(self) -> Iterable[Fragment]:
        owned = self.owned
        assert {each.dtype for each in owned} <= {torch.float32}, "fp32 weights are updated"
        if self._partitions is not None:
            yield from self._find_zero3_fragments(owned[0])
            return
        for index, (name, parameter) in enumerate(self._parameters.items()):
            decay = bool(self.decays_P[index])
            if not self.is_partitioned:
                yield Fragment(name, index, 0, parameter.numel(), index, 0, decay)
                continue
            mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]
            if mapping is not None:
                whole, partition = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
                yield Fragment(name, index, whole.start, whole.numel, 0, partition.start, decay)

    def _find_zero3_fragments(self, partition: Tensor) -> Iterable[Fragment]:
        """Every parameter is cut into a piece a rank, the last padded or empty."""
        rank, offset = torch.distributed.get_rank(), 0
        for index, (name, parameter) in enumerate(self._parameters.items()):
            whole: Any = parameter
            size, numel = whole.ds_tensor.ds_numel, whole.ds_numel
            start = min(rank * size, numel)
            length = min(size, numel - start)
            if length:
                yield Fragment(name, index, start, length, 0, offset, bool(self.decays_P[index]))
            offset += size
        assert offset == partition.numel(), "the pieces of all parameters fill the partition"
