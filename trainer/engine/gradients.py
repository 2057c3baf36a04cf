"""Sums gradients over micro-batches and ranks, and sends them while the backward pass still runs.

What a step sends: under ZeRO-1 and 2 each rank updates its own part of the parameters. So a step
sends these bytes for each parameter of the model:

    gradients, fp32    4, reduce-scattered: each rank gets the sums of its part
    weights            2 in bf16, 4 in fp32, gathered from the ranks that have updated them
                       (trainer/engine/weights.py)
    together           6 in bf16, 8 in fp32

Muon also exchanges the matrices that ZeRO splits (trainer/optim/split_matrices.py).

On W ranks, a ring sends (W - 1) / W of these bytes from each rank to the next. Without ZeRO, the
gradients are all-reduced, which sends 4 bytes for each parameter twice: once to add them up, and
once to hand out the sums. These bytes do not depend on the number of micro-batches, because a rank
first adds up its own gradients.

When gradients are sent: parameters are divided among buckets, in the order in which a backward pass
computes their gradients, which is the reverse of the model's order. A hook on each parameter adds
its gradient to the sums of its bucket. In the last backward pass of a step, a bucket is sent as
soon as it has all its gradients, and travels while the gradients of earlier layers are computed.
All ranks send the buckets in the same order. A rank that has completed a later bucket first keeps
it back.

Which rank updates what: each bucket is a group of parameters of the optimizer, and DeepSpeed cuts
each group into equal pieces, one per rank. So every rank gets a piece of every bucket, and no
bucket has to wait for a certain rank.

ZeRO-3 sums and sends gradients by DeepSpeed's own hooks, in every backward pass.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Parameter

from trainer.engine.deepspeed_config import MOST_ON_THE_WAY
from trainer.engine.partitions import cut_sizes
from trainer.engine.weights import WeightGathers
from trainer.optim.sharded import ShardedOptimizer


class Gradients(Protocol):
    """Makes the backward passes and the update of a step; `start_engine` chooses the class."""

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Adds the gradient of one micro-batch's loss to the gradient of the step.

        Args:
            loss: The micro-batch's part of the loss of the step. The loss of the step is the sum of
                all these parts on all ranks.
            is_last: Whether this is the last backward pass that this rank makes in the step. If so,
                gradients are sent while they are being computed.
        """

    def step(self, waits_for_weights: bool = True) -> None:
        """Sends the gradients that were not sent yet, and updates the weights.

        Every rank has to call it, even a rank that has made no backward pass in the step.

        Args:
            waits_for_weights: Whether the new weights of all ranks have arrived when the method
                returns. If not, they travel while the next step begins. Until its first backward
                pass, `trainer.engine.zero.current_model` is then the only way to the weights.
        """


@dataclass(eq=False)
class Bucket:
    """Parameters whose gradients are sent together, and the sums of their gradients.

    Attributes:
        places: For each parameter of the bucket, the index in `sums` of its first element.
        numel: Number of elements of `sums`, padding included.
        sums: The gradients of this rank, added up over the backward passes of the step, fp32
            [numel]. None before the first gradient, and after the bucket was sent.
        totals: The sums over all ranks, fp32; None before the bucket was sent. Without ZeRO it has
            all elements, [numel]. With ZeRO it has those of the part that this rank updates.
        num_expected: Number of parameters whose gradients the last backward pass of the step has
            not added yet. If it is 0 in that pass, the bucket can be sent.
    """

    places: dict[Tensor, int]
    numel: int
    sums: Tensor | None = None
    totals: Tensor | None = None
    num_expected: int = 0


def cut_buckets(parameters: Sequence[Parameter], bucket_elements: int) -> list[list[Parameter]]:
    """Divides parameters among buckets, and returns the parameters of each bucket.

    Buckets are in the order in which they are sent, so the first bucket has the last parameters.
    Within a bucket, parameters are in the model's order.

    Args:
        parameters: The parameters that are trained, in the model's order.
        bucket_elements: The most elements of a bucket. A parameter with more elements has a bucket
            of its own.
    """
    sizes = [parameter.numel() for parameter in parameters]
    return [[parameters[index] for index in bucket] for bucket in cut_sizes(sizes, bucket_elements)]


def whole_buckets(groups: Sequence[Sequence[Parameter]]) -> list[Bucket]:
    """Returns buckets whose totals every rank needs, because ZeRO partitions nothing.

    Args:
        groups: The parameters of each bucket, from `cut_buckets`.
    """
    buckets = []
    for parameters in groups:
        places: dict[Tensor, int] = {}
        numel = 0
        for parameter in parameters:
            places[parameter] = numel
            numel += parameter.numel()
        buckets.append(Bucket(places, numel))
    return buckets


def partitioned_buckets(zero: Any) -> list[Bucket]:
    """Returns one bucket for each group of parameters that DeepSpeed partitions.

    Args:
        zero: DeepSpeed's optimizer of ZeRO-1 and 2. It has made each group one flat tensor, whose
            parts are the parameters.
    """
    buckets = []
    for parameters, flat in zip(zero.bit16_groups, zero.bit16_groups_flat, strict=True):
        places = {
            parameter: (parameter.data_ptr() - flat.data_ptr()) // flat.element_size()
            for parameter in parameters
        }
        buckets.append(Bucket(places, flat.numel()))
    return buckets


class GradientSums:
    """Sums the gradient of a step in fp32 and sends it, without ZeRO or under ZeRO-1 and 2.

    The module's docstring says what is sent, and when.
    """

    def __init__(
        self,
        engine: Any,
        optimizer: ShardedOptimizer,
        buckets: list[Bucket],
        weights: WeightGathers | None = None,
    ) -> None:
        """Puts a hook on each parameter, and removes DeepSpeed's hooks.

        Args:
            engine: DeepSpeed's engine around the model.
            optimizer: The optimizer of the engine.
            buckets: The buckets in the order in which they are sent.
            weights: Gathers the weights after an update; None without ZeRO, where every rank
                updates all weights.
        """
        self._engine = engine
        self._optimizer = optimizer
        self._weights = weights
        self._buckets = buckets
        self._bucket_of: dict[Tensor, Bucket] = {
            parameter: bucket for bucket in buckets for parameter in bucket.places
        }
        self._num_sent = 0
        self._is_last = False
        self._on_the_way: deque[tuple[Any, Tensor]] = deque()
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]
        engine.enable_backward_allreduce = False
        if optimizer.is_partitioned:
            zero = engine.optimizer
            for hook in zero._grad_acc_hooks:
                hook.remove()
            # DeepSpeed's method calls the optimizer once per group, but clipping sees all groups.
            zero.step = self._update_partitions
            # DeepSpeed has no gradients that it could finalize.
            zero.finalize_gradient_accumulation_boundary = lambda: None

    def backward(self, loss: Tensor, is_last: bool) -> None:
        """Adds the gradient of one micro-batch's loss to the sums of the step.

        Args:
            loss: The micro-batch's part of the loss of the step.
            is_last: Whether this is the last backward pass that this rank makes in the step. If so,
                gradients are sent while they are being computed.
        """
        self._wait_for_weights()
        self._is_last = is_last
        if is_last:
            for parameter in reached_parameters(loss):
                if parameter in self._bucket_of:
                    self._bucket_of[parameter].num_expected += 1
        try:
            self._engine.backward(loss, scale_wrt_gas=False)
        except BaseException:
            self._forget()
            raise

    def step(self, waits_for_weights: bool = True) -> None:
        """Sends what was not sent yet, and updates the weights.

        Args:
            waits_for_weights: Whether the new weights of all ranks have arrived when the method
                returns; see `Gradients.step`.
        """
        self._wait_for_weights()  # a rank may have made no backward pass
        while self._num_sent < len(self._buckets):
            self._send_next()
        while self._on_the_way:
            self._receive_first()
        if not self._optimizer.is_partitioned:
            for bucket in self._buckets:
                assert bucket.totals is not None, "all buckets were sent"
                for parameter, place in bucket.places.items():
                    gradient = bucket.totals.narrow(0, place, parameter.numel())
                    parameter.grad = gradient.view_as(parameter)
        self._engine.step()
        self._forget()
        if waits_for_weights:
            self._wait_for_weights()

    def _wait_for_weights(self) -> None:
        """Waits until the weights of all ranks have arrived."""
        if self._weights is not None:
            self._weights.finish()

    def _add(self, parameter: Tensor) -> None:
        """Adds a parameter's gradient to the sums of its bucket.

        torch calls it in a backward pass, as soon as the gradient is complete. In the last backward
        pass of a step, buckets are sent that now have all gradients.

        Args:
            parameter: The parameter, whose `grad` is then None again.
        """
        assert parameter.grad is not None, "torch calls the hook after it has set the gradient"
        bucket = self._bucket_of[parameter]
        sums = self._sums(bucket)
        place = bucket.places[parameter]
        sums.narrow(0, place, parameter.numel()).view_as(parameter).add_(parameter.grad)
        parameter.grad = None
        if not self._is_last:
            return
        bucket.num_expected -= 1
        while self._num_sent < len(self._buckets) and self._is_next_full():
            self._send_next()

    def _is_next_full(self) -> bool:
        """Returns whether the bucket to send next has all gradients of this rank."""
        return self._buckets[self._num_sent].num_expected == 0

    def _sums(self, bucket: Bucket) -> Tensor:
        """Returns the sums of a bucket, which are made with zeros if the bucket has none yet."""
        if bucket.sums is None:
            assert bucket.totals is None, "a gradient came after its bucket was sent"
            device = next(iter(bucket.places)).device
            bucket.sums = torch.zeros(bucket.numel, dtype=torch.float32, device=device)
        return bucket.sums

    def _send_next(self) -> None:
        """Begins to add up the next bucket over ranks, in the background.

        If `MOST_ON_THE_WAY` buckets are being added up already, it first waits for the oldest one.
        """
        while len(self._on_the_way) >= MOST_ON_THE_WAY:
            self._receive_first()
        bucket = self._buckets[self._num_sent]
        self._num_sent += 1
        sums = self._sums(bucket)
        bucket.sums = None
        bucket.totals = sums
        world_size = torch.distributed.get_world_size()
        if world_size == 1:
            return
        if self._optimizer.is_partitioned:
            bucket.totals = sums.new_empty(bucket.numel // world_size)
            work = torch.distributed.reduce_scatter_tensor(bucket.totals, sums, async_op=True)
        else:
            work = torch.distributed.all_reduce(sums, async_op=True)
        self._on_the_way.append((work, sums))

    def _receive_first(self) -> None:
        """Waits for the oldest bucket that is on its way, and frees the sums that this rank sent.

        On a GPU the process does not wait: later work on the GPU is queued behind the bucket.
        """
        work, _ = self._on_the_way.popleft()
        work.wait()

    def _update_partitions(self, _closure: None = None) -> None:
        """Updates this rank's part of every bucket, and begins to gather the parts of all ranks.

        It replaces the method `step` of DeepSpeed's optimizer, so DeepSpeed's engine calls it.
        """
        assert self._weights is not None, "ZeRO-1 and 2 gather weights"
        for partition, bucket in zip(self._optimizer.owned, self._buckets, strict=True):
            partition.grad = bucket.totals
        self._optimizer.step()
        for partition in self._optimizer.owned:
            partition.grad = None
        self._weights.start()

    def _forget(self) -> None:
        """Drops all sums and totals, at the end of a step or after a backward pass that failed."""
        while self._on_the_way:
            self._receive_first()
        for bucket in self._buckets:
            bucket.sums = None
            bucket.totals = None
            bucket.num_expected = 0
        self._num_sent = 0
        self._is_last = False


class Zero3Gradients:
    """Makes backward passes and updates under ZeRO-3, whose gradients DeepSpeed sums and sends."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def backward(self, loss: Tensor, is_last: bool) -> None:  # noqa: ARG002
        """Adds the gradient of a loss to the gradient of the step; DeepSpeed sends it at once."""
        # DeepSpeed divides gradients by the number of ranks.
        scaled_loss = loss * torch.distributed.get_world_size()
        self._engine.backward(scaled_loss, scale_wrt_gas=False)

    def step(self, waits_for_weights: bool = True) -> None:  # noqa: ARG002
        """Updates the weights, which DeepSpeed gathers when they are needed."""
        self._engine.step()


def reached_parameters(loss: Tensor) -> set[Tensor]:
    """Returns the leaf tensors whose gradients a backward pass from a loss computes.

    These need not be all parameters of the model. For example, the head of next sentence prediction
    has no gradient if its loss has the weight 0.
    """
    leaves = set()
    seen = set()
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.add(leaf)
        nodes.extend(next_node for next_node, _ in node.next_functions)
    return leaves
