"""Defines the base class of all optimizers, which updates the weights that this rank owns.

Under ZeRO, DeepSpeed gives each rank flat fp32 partitions of the weights: one-dimensional tensors
that hold parts of many parameters, one after another. Norms of single parameters and weight decay
need to know where each parameter is in a partition. A `Fragment` is the part of one parameter that
is in a partition of this rank.

Under ZeRO-1 and 2 the parameters form buckets, and the gradients of a bucket are sent together
(trainer/engine/gradients.py). A rank has one partition of each bucket. A single call of `step`
updates the partitions of all buckets, because clipping needs the norm of the whole gradient.
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
    """The part of one parameter that this rank updates.

    Attributes:
        name: Name of the parameter.
        index: Index of the parameter among the P parameters.
        start: Index of the part's first value in the flattened parameter.
        numel: Number of values in the part.
        owner: Index, in `ShardedOptimizer.owned`, of the tensor that holds the part.
        owner_start: Index of the part's first value in that tensor, flattened.
        decays: Whether weight decay applies to the parameter.
    """

    name: str
    index: int
    start: int
    numel: int
    owner: int
    owner_start: int
    decays: bool

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Returns the values of this part, such as its weights or gradients, as a view [numel].

        Args:
            tensors: Tensors of the shapes of `ShardedOptimizer.owned`, such as a state of the
                optimizer. The view is into one of them.
        """
        return tensors[self.owner].view(-1).narrow(0, self.owner_start, self.numel)


def has_weight_decay(name: str, parameter: Tensor) -> bool:
    """Returns whether weight decay applies to a parameter.

    It applies to matrices whose name says neither bias nor norm, as in google-research/bert.
    """
    module, _, kind = name.rpartition(".")
    excluded = kind == "bias" or module.rpartition(".")[2].lower().endswith("norm")
    return not excluded and parameter.ndim >= 2


class ShardedOptimizer(torch.optim.Optimizer):
    """Clips the gradient to a global norm, and leaves it to subclasses how weights move.

    P is the number of parameters that are not frozen.

    Attributes:
        state_names: Names of the states that a subclass keeps for each weight, in fp32, such as the
            running mean of its gradients.
        settings: The settings of the optimizer.
        decays_P: Whether weight decay applies to each parameter, bool [P] on the CPU.
        norm_limit: The bound for the norm of the whole gradient. `step` changes no weight if the
            norm is this large or larger, or NaN. It is infinite until the caller sets it.
        num_updates: Number of updates since the beginning, or since the last `reset`.
        is_clipped: Whether the gradient of the last update was clipped.
        grad_squared_norms_P: Squared norms of the last gradient before clipping, fp32 [P].
        grad_norm: Norm of the whole last gradient before clipping, the same on every rank.
    """

    state_names: tuple[str, ...] = ()
    # torch wraps this method so that torch._dynamo leaves it alone. With the wrapper, the first
    # optimizer would import torch._dynamo, which takes a second.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)

    def __init__(
        self, parameters: Iterable[tuple[str, Parameter]], settings: OptimizerSettings | None = None
    ) -> None:
        """Takes the parameters before DeepSpeed flattens them.

        Args:
            parameters: The parameters with their names. Frozen ones are left out.
            settings: The settings of the optimizer; None takes the defaults.
        """
        self.settings = settings or OptimizerSettings()
        self._parameters = {
            name: parameter for name, parameter in parameters if parameter.requires_grad
        }
        self.decays_P = torch.tensor(
            [has_weight_decay(name, parameter) for name, parameter in self._parameters.items()]
        )
        self._partitions: list[Tensor] | None = None  # under ZeRO-3 only
        self._carried: Tensor | None = None
        # For each name that `views` takes: addresses of the tensors, and the views into them.
        self._views: dict[str, tuple[list[int], list[Tensor]]] = {}
        self.norm_limit = math.inf
        self.num_updates = 0
        self.is_clipped = False
        self.grad_squared_norms_P: Tensor | None = None
        self.grad_norm = math.nan
        super().__init__(list(self._parameters.values()), {"lr": 0.0})

    @property
    def parameters(self) -> list[Parameter]:
        """All parameters of the model that are not frozen, in the order of the model."""
        return list(self._parameters.values())

    def regroup(self, groups: Sequence[Sequence[Parameter]]) -> None:
        """Puts the parameters into groups, before DeepSpeed starts.

        DeepSpeed partitions each group by itself, so every rank gets one partition per group.

        Args:
            groups: The parameters of each group. Every parameter of `parameters` must be in exactly
                one group.
        """
        [whole] = self.param_groups
        self.param_groups = [{**whole, "params": list(parameters)} for parameters in groups]

    @property
    def owned(self) -> list[Tensor]:
        """The fp32 tensors that this rank updates: flat partitions under ZeRO, or all weights."""
        if self._partitions is not None:
            return self._partitions
        return [tensor for group in self.param_groups for tensor in group["params"]]

    @property
    def is_partitioned(self) -> bool:
        """Whether `owned` holds partitions that ZeRO made, and not the parameters themselves."""
        parameters = self._parameters.values()
        is_mapped = any(hasattr(parameter, "_hp_mapping") for parameter in parameters)
        return is_mapped or self._partitions is not None

    @property
    def has_partitioned_weights(self) -> bool:
        """Whether the model of each rank holds only a part of each weight, as under ZeRO-3."""
        return self._partitions is not None

    @property
    def asks_other_ranks(self) -> bool:
        """Whether norms of whole parameters need an all-reduce.

        They need it if ZeRO partitions the weights over several ranks.
        """
        return self.is_partitioned and torch.distributed.get_world_size() > 1

    def adopt(self, partitions: Sequence[Tensor]) -> None:
        """Makes this rank's partition under ZeRO-3 the tensor that the optimizer updates.

        ZeRO-1 and 2 put their partitions into `param_groups`, where `owned` finds them. ZeRO-3 does
        so during a step only, so the engine hands its partition over by this method.

        Args:
            partitions: The partition, as a list of one flat fp32 tensor.
        """
        assert len(partitions) == 1, "clipping needs all parameters in one sub-group"
        self._partitions = list(partitions)

    @cached_property
    def fragments(self) -> list[Fragment]:
        """The parts of parameters that this rank updates, in the order of parameters.

        They are fixed once DeepSpeed has started.
        """
        return list(self._find_fragments())

    def tensors(self, name: str) -> list[Tensor]:
        """Returns a state, or the weights, as tensors of the shapes of `owned`.

        A state that does not exist yet is created and filled with zeros.

        Args:
            name: One of `state_names`, or "fp32" for the weights.
        """
        if name == "fp32":
            return self.owned
        assert name in self.state_names, f"{type(self).__name__} has no state {name}"
        for tensor in self.owned:
            if name not in self.state[tensor]:
                self.state[tensor][name] = tensor.new_zeros(tensor.shape)
        return [self.state[tensor][name] for tensor in self.owned]

    def views(self, name: str) -> list[Tensor]:
        """Returns a state, or the weights, as one view per fragment, in the order of `fragments`.

        Args:
            name: One of `state_names`, or "fp32" for the weights.
        """
        tensors = self.tensors(name)
        addresses = [tensor.data_ptr() for tensor in tensors]
        known_addresses, _ = self._views.get(name, ([], []))
        if known_addresses != addresses:  # a tensor has moved
            self._views[name] = (addresses, self.pieces(tensors))
        return self._views[name][1]

    @cached_property
    def index(self) -> Tensor:
        """The field `index` of each fragment, int64 on the device."""
        indices = [fragment.index for fragment in self.fragments]
        return torch.tensor(indices, dtype=torch.int64, device=self.owned[0].device)

    def reset(self) -> None:
        """Drops all states and sets the number of updates to 0, for a phase that starts afresh."""
        self.state.clear()
        self._views.clear()
        self.num_updates = 0

    def metrics(self) -> dict[str, float]:
        """Returns numbers about the last update, by the names of their columns in metrics.jsonl.

        The result is the same on every rank. Here it is empty; subclasses add columns.
        """
        return {}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next update."""
        for group in self.param_groups:
            group["lr"] = learning_rate

    def carry(self, sums: Tensor) -> None:
        """Lets the all-reduce of the next `step` also add up some sums of the caller over ranks.

        This saves an all-reduce for the sums alone. Call `has_arrived` after the step to learn
        whether they were added up.

        Args:
            sums: The sums of this rank, a float64 tensor on the device. The step overwrites it with
                the totals over all ranks.
        """
        self._carried = sums

    def has_arrived(self) -> bool:
        """Returns whether the sums given to the last `carry` have become totals over all ranks.

        They have not if no `step` has made an all-reduce since, as without ZeRO or with one rank.
        Then the optimizer forgets the sums, and the caller has to add them up itself.
        """
        has_arrived = self._carried is None
        self._carried = None
        return has_arrived

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Clips the gradient and updates the weights.

        No weight, state or `num_updates` changes if the norm of the gradient is not below
        `norm_limit`, or is not finite. Either way `grad_norm` and `grad_squared_norms_P` are set.
        """
        assert closure is None, "DeepSpeed passes no closure"
        whole = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
            for tensor in self.owned
        ]
        gradients = self.pieces(whole)
        self.grad_squared_norms_P = self._measure(gradients)
        for name in ("fp32", *self.state_names):
            self.views(name)  # made now, while the GPU is busy: the next line but one waits for it
        norm = self.grad_squared_norms_P.sum().sqrt()
        self.grad_norm = float(norm)  # the step's one wait for the device
        if not self.grad_norm < self.norm_limit:  # also if the norm is NaN
            return
        self.is_clipped = 0 < self.settings.max_grad_norm < self.grad_norm
        self.num_updates += 1
        divisor = norm / self.settings.max_grad_norm if self.is_clipped else None
        self._update(gradients, divisor)

    @torch.no_grad()
    def squared_norms(self, *pieces: Sequence[Tensor]) -> Tensor:
        """Returns squared L2 norms of whole parameters, added up over the parts of all ranks.

        One all-reduce adds up all norms, whatever the number of lists.

        Args:
            pieces: One or several lists of tensors, such as gradients and weights. Each list has
                one tensor per fragment, in the order of `fragments`.

        Returns:
            The squared norm for each parameter: fp32 [P] for one list, [number of lists, P] for
            several.
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
        """Returns the part of some tensors that belongs to each fragment.

        Args:
            tensors: Tensors of the shapes of `owned`.

        Returns:
            One view into `tensors` per fragment, in the order of `fragments`.
        """
        return [fragment.of(tensors) for fragment in self.fragments]

    def _measure(self, gradients: list[Tensor]) -> Tensor:
        """Returns the squared norm of each parameter's gradient before clipping, fp32 [P].

        It changes no weight and no state. `step` calls it before `_update`.

        Args:
            gradients: One tensor per fragment.
        """
        return self.squared_norms(gradients)

    def _update(self, gradients: list[Tensor], divisor: Tensor | None) -> None:
        """Updates the weights and the states; each subclass defines how.

        `num_updates` already counts this update.

        Args:
            gradients: One tensor per fragment, before clipping. They may be overwritten.
            divisor: Scalar tensor by which clipping divides the gradient; None means no clipping.
        """
        raise NotImplementedError

    def _find_fragments(self) -> Iterable[Fragment]:
        """Yields the parts of parameters that this rank updates, in the order of parameters."""
        owned = self.owned
        assert {tensor.dtype for tensor in owned} <= {torch.float32}, "fp32 weights are updated"
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
                whole = mapping.lp_fragment_address
                partition = mapping.get_hp_fragment_address()
                owner = mapping.param_group_index
                yield Fragment(name, index, whole.start, whole.numel, owner, partition.start, decay)

    def _find_zero3_fragments(self, partition: Tensor) -> Iterable[Fragment]:
        """Yields the parts of parameters that this rank updates under ZeRO-3.

        ZeRO-3 cuts every parameter into one part per rank, all of one size. If the parameter does
        not fill them, the last parts end with padding or have nothing but padding. Fragments
        exclude the padding.

        Args:
            partition: This rank's partition: its parts of all parameters, in order.
        """
        rank = torch.distributed.get_rank()
        offset = 0
        for index, (name, parameter) in enumerate(self._parameters.items()):
            whole: Any = parameter
            size = whole.ds_tensor.ds_numel
            numel = whole.ds_numel
            start = min(rank * size, numel)
            length = min(size, numel - start)
            if length:
                yield Fragment(name, index, start, length, 0, offset, bool(self.decays_P[index]))
            offset += size
        assert offset == partition.numel(), "the pieces of all parameters fill the partition"
