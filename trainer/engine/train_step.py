"""Makes one optimizer step: ranks agree on its counts, then compute, sum and apply its gradients.

Letters in shapes: B instances, T tokens and M masked tokens of a micro-batch; N fields of
`PretrainingSums`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from pipeline.seeds import seed_of
from trainer.engine.gradients import Gradients
from trainer.model.bert import PretrainingSums, pretraining_sums, stack_sums, zero_sums
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks
from trainer.stream.batches.pack import MicroBatch, empty_micro_batch, to_device


@dataclass(frozen=True)
class StepCounts:
    """Facts about one step that all ranks share before its first backward pass.

    Attributes:
        num_micro_batches: Number of backward passes that every rank makes: the most micro-batches
            of any rank.
        instances: Number of instances of the global batch.
        masked: Number of masked tokens of the global batch.
        tokens: Number of tokens of the global batch.
        squared_tokens: Sum of the squared lengths in tokens of the instances of the global batch.
            The cost of attention is proportional to it.
        most_tokens: The largest number of tokens that any rank has in this step.
        wait_seconds: The longest time that any rank has waited for its instances.
        elapsed_seconds: The duration of the phase so far, on the rank where it is longest; 0 if the
            phase ends after a number of steps, not after a time.
        memory_bytes: The most memory that any rank has used so far.
        drawn: For each dataset of a mixture, the number of instances and the number of tokens in
            the global batch that are from it. Empty if the ranks counted none.
    """

    num_micro_batches: int
    instances: int
    masked: int
    tokens: int
    squared_tokens: int
    most_tokens: int
    wait_seconds: float
    elapsed_seconds: float
    memory_bytes: int
    drawn: tuple[tuple[int, int], ...]


def begin_to_agree(
    ranks: Ranks,
    micro_batches: Sequence[MicroBatch],
    wait_seconds: float,
    drawn: Sequence[tuple[int, int]] = (),
    elapsed_seconds: float = 0.0,
) -> Callable[[], StepCounts]:
    """Sends this rank's counts of a step to the others; every rank has to call it.

    Ranks exchange their counts in one small collective on the CPU, which does not wait for a GPU.
    The collective runs in the background, so ranks can make another step meanwhile.

    Args:
        ranks: This process and the others of the run.
        micro_batches: This rank's micro-batches of the step.
        wait_seconds: How long this rank has waited for its micro-batches.
        drawn: For each dataset of a mixture, the number of instances and the number of tokens in
            `micro_batches` that are from it.
        elapsed_seconds: The duration of the phase so far on this rank; 0 if the phase ends after a
            number of steps.

    Returns:
        A function that waits for the counts of all ranks and returns them.
    """
    instances = sum(len(batch.is_random_next) for batch in micro_batches)
    masked = sum(len(batch.masked_labels) for batch in micro_batches)
    tokens = sum(len(batch.input_ids) for batch in micro_batches)
    squared_tokens = sum(
        int(batch.cu_seqlens.diff().long().square().sum()) for batch in micro_batches
    )
    counts = [  # `_add_up` takes them in this order
        len(micro_batches),
        instances,
        masked,
        tokens,
        squared_tokens,
        wait_seconds,
        ranks.peak_memory_bytes(),
        elapsed_seconds,
        *chain.from_iterable(drawn),
    ]
    row = torch.tensor(counts, dtype=torch.float64)  # whole numbers stay exact to 2^53
    rows = [torch.zeros_like(row) for _ in range(ranks.world_size)]
    work = torch.distributed.all_gather(rows, row, group=ranks.counts_group, async_op=True)

    def agree() -> StepCounts:
        work.wait()
        return _add_up(rows)

    return agree


def _add_up(rows: Sequence[Tensor]) -> StepCounts:
    """Returns the sums and maxima of the counts of all ranks.

    Args:
        rows: The counts of each rank, float64, in the order in which `begin_to_agree` sends them.
    """
    columns = torch.stack(list(rows)).T  # for each count its values on all ranks
    batches, instances, masked, tokens, squares, waits, memory, elapsed, *drawn = columns
    # Instances of the first dataset, its tokens, instances of the second dataset, and so on.
    drawn_sums = [int(column.sum()) for column in drawn]
    return StepCounts(
        num_micro_batches=int(batches.max()),
        instances=int(instances.sum()),
        masked=int(masked.sum()),
        tokens=int(tokens.sum()),
        squared_tokens=int(squares.sum()),
        most_tokens=int(tokens.max()),
        wait_seconds=float(waits.max()),
        elapsed_seconds=float(elapsed.max()),
        memory_bytes=int(memory.max()),
        drawn=tuple(zip(drawn_sums[::2], drawn_sums[1::2], strict=True)),
    )


def agree_on_waiting(ranks: Ranks, is_ready: bool, must_stop: bool) -> tuple[bool, bool]:
    """Tells all ranks whether they have the data of the next step, and whether one must stop.

    While a rank waits for data, all ranks call it again and again. Every rank has to call it
    equally often, because each call is a collective.

    Args:
        ranks: This process and the others of the run.
        is_ready: Whether this rank has the data of its next step.
        must_stop: Whether this rank was told to stop.

    Returns:
        Whether every rank is ready, and whether any rank was told to stop.
    """
    flags = torch.tensor([is_ready, not must_stop], dtype=torch.int64)
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MIN, group=ranks.counts_group)
    return bool(flags[0]), not flags[1]


def train_step(
    engine: Any,
    ranks: Ranks,
    micro_batches: Sequence[MicroBatch],
    counts: StepCounts,
    nsp_weight: float = 1.0,
    must_stop: Callable[[], bool] = lambda: False,
    waits_for_weights: bool = True,
) -> Tensor:
    """Makes one optimizer step; every rank has to call it.

    The all-reduce that adds up the norms of the gradient also adds up the losses, and the number of
    ranks that were told to stop. So all ranks learn of a stop by the end of the step during which
    it was asked for, or of the next one, and all of them learn of it in the same step.

    The loss is the sum of MLM losses / masked tokens + nsp_weight * sum of NSP losses / instances,
    with sums and counts over the whole global batch. So the step is the same however the global
    batch is split over ranks and micro-batches.

    Args:
        engine: DeepSpeed's engine around a BertForPreTraining, from `start_engine`.
        ranks: This process and the others of the run.
        micro_batches: This rank's micro-batches of the step.
        counts: The counts of the step, from `begin_to_agree`.
        nsp_weight: The weight of the loss of next sentence prediction; 0 leaves it out.
        must_stop: Returns whether this rank was told to stop. It is called once, after the backward
            passes.
        waits_for_weights: Whether the new weights of all ranks have arrived when the function
            returns. If not, they travel while the next step begins, and the caller must take the
            model from `trainer.engine.zero.current_model` if it reads weights before that.

    Returns:
        float64 [N + 1] on the device: sums over the global batch in the order of `PretrainingSums`,
        and then the number of ranks that must stop.
    """
    # ZeRO-3 exchanges weights and gradients in every pass. So all ranks must make equally many
    # passes, and a rank with fewer micro-batches than others adds empty ones.
    num_missing = counts.num_micro_batches - len(micro_batches)
    batches = [*micro_batches, *[empty_micro_batch()] * num_missing]
    sums_N = zero_sums(ranks.device)
    gradients: Gradients = engine.gradients
    for num_passes, batch in enumerate(batches, start=1):
        sums = forward_sums(engine, batch, ranks.device)
        loss = sums.mlm_nll / counts.masked
        if nsp_weight:
            loss = loss + nsp_weight * sums.nsp_nll / counts.instances
        gradients.backward(loss, is_last=num_passes == len(batches))
        sums_N += stack_sums(sums)

    # `new_full` writes the number on the device. A copy from the host would wait for the device.
    totals = torch.cat([sums_N, sums_N.new_full((1,), float(must_stop()))])
    optimizer: ShardedOptimizer = engine.basic_optimizer
    optimizer.carry(totals)
    gradients.step(waits_for_weights)
    if not optimizer.has_arrived():  # the optimizer needed no all-reduce that could carry them
        torch.distributed.all_reduce(totals)
    return totals


def forward_sums(module: Any, batch: MicroBatch, device: torch.device) -> PretrainingSums:
    """Returns a model's loss sums and numbers of right answers for one micro-batch.

    For a micro-batch of B instances with M masked tokens, the losses of the BERT paper are
    `mlm_nll / M` and `nsp_nll / B`.

    Args:
        module: A BertForPreTraining, or DeepSpeed's engine around one.
        batch: The micro-batch: B instances with T tokens in all, M of them masked, so `input_ids`
            is [T], `masked_labels` [M] and `is_random_next` [B]. It may be on any device.
        device: The device of the module, to which the micro-batch is copied.

    Returns:
        Scalars on the device. `mlm_nll` over the masked tokens and `nsp_nll` over the
        instances are differentiable sums of losses in nats, float32. `num_mlm_correct` and
        `num_nsp_correct` are the numbers of right answers, int64.
    """
    batch = to_device(batch, device)
    mlm_logits, nsp_logits = module(batch, batch.masked_positions)
    return pretraining_sums(
        mlm_logits,
        nsp_logits,
        batch.masked_labels,
        batch.is_random_next,
        module.mlm_head.sums,
    )


def seed_dropout(seed: int, phase: int, step: int, rank: int) -> None:
    """Seeds torch's generators for the dropout of one step on one rank.

    As the seed depends only on the arguments, a continued run needs no saved generator state.

    Args:
        seed: The seed of the run.
        phase: Index of the phase, from 0.
        step: Number of steps before this one in the phase.
        rank: Number of this process.
    """
    # torch takes seeds below 2^63: the shift drops one of 64 bits.
    torch.manual_seed(seed_of(f"{seed}/dropout/{phase}/{step}/{rank}", num_bytes=8) >> 1)


def grad_norm(engine: Any, optimizer: ShardedOptimizer) -> float:
    """Returns the L2 norm of the last step's gradient before clipping; the same on every rank.

    The norm is infinite if DeepSpeed has found an overflow in the gradient. DeepSpeed then has not
    updated the weights.
    """
    return math.inf if getattr(engine.optimizer, "overflow", False) else optimizer.grad_norm
