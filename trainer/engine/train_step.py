"""One optimizer step: what all ranks agree on before it, its passes, its loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from pipeline.seeds import seed_of
from trainer.model.bert import PretrainingSums, pretraining_sums
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks
from trainer.stream.batches.pack import MicroBatch, empty_micro_batch, to_device


@dataclass(frozen=True)
class StepCounts:
    """What all ranks must know of a step before its first backward pass.

    Counts are of the global batch, but `num_micro_batches` are the backward passes of every rank.
    Seconds, bytes and `most_tokens` are the most of any rank; `drawn` has instances and tokens of
    every dataset.
    """

    num_micro_batches: int
    instances: int
    masked: int
    tokens: int
    squared_tokens: int
    most_tokens: int
    wait_seconds: float
    must_stop: bool
    elapsed_seconds: float
    memory_bytes: int
    drawn: tuple[tuple[int, int], ...]


def agree_on_step(
    ranks: Ranks,
    micro_batches: Sequence[MicroBatch],
    wait_seconds: float,
    must_stop: bool,
    drawn: Sequence[tuple[int, int]] = (),
    elapsed_seconds: float = 0.0,
) -> StepCounts:
    """Exchanges this rank's counts for those of the step, in one small collective on the CPU."""
    mine = [
        len(micro_batches),
        sum(len(batch.is_random_next) for batch in micro_batches),
        sum(len(batch.masked_labels) for batch in micro_batches),
        sum(len(batch.input_ids) for batch in micro_batches),
        sum(int(batch.cu_seqlens.diff().long().square().sum()) for batch in micro_batches),
        wait_seconds,
        must_stop,
        ranks.peak_memory_bytes(),
        elapsed_seconds,
        *(number for pair in drawn for number in pair),
    ]
    row = torch.tensor(mine, dtype=torch.float64)  # whole numbers stay exact to 2^53
    rows = [torch.zeros_like(row) for _ in range(ranks.world_size)]
    torch.distributed.all_gather(rows, row, group=ranks.counts_group)
    batches, instances, masked, tokens, squares, waits, stops, memory, elapsed, *draws = (
        torch.stack(rows).T
    )
    sums = [int(column.sum()) for column in draws]
    return StepCounts(
        num_micro_batches=int(batches.max()),
        instances=int(instances.sum()),
        masked=int(masked.sum()),
        tokens=int(tokens.sum()),
        squared_tokens=int(squares.sum()),
        most_tokens=int(tokens.max()),
        wait_seconds=float(waits.max()),
        must_stop=bool(stops.any()),
        elapsed_seconds=float(elapsed.max()),
        memory_bytes=int(memory.max()),
        drawn=tuple(zip(sums[::2], sums[1::2], strict=True)),
    )


def agree_on_waiting(ranks: Ranks, is_ready: bool, must_stop: bool) -> tuple[bool, bool]:
    """Whether every rank has its next step, and whether any rank was told to stop."""
    both = torch.tensor([is_ready, not must_stop], dtype=torch.int64)
    torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MIN, group=ranks.counts_group)
    return bool(both[0]), not both[1]


def train_step(
    engine: Any,
    ranks: Ranks,
    micro_batches: Sequence[MicroBatch],
    counts: StepCounts,
    nsp_weight: float = 1.0,
) -> Tensor:
    """One optimizer step, exact for any split of the global batch over ranks and micro-batches.

    The loss is MLM sum / masked positions of the global batch + nsp_weight * NSP sum / its
    instances. DeepSpeed averages over ranks, hence the factor; every rank makes the same number of
    backward passes, or ZeRO-2 would stop. Returns `stack_sums` over all ranks.
    """
    missing = counts.num_micro_batches - len(micro_batches)
    totals = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    for batch in [*micro_batches, *[empty_micro_batch()] * missing]:
        sums = forward_sums(engine, batch, ranks.device)
        loss = sums.mlm_nll / counts.masked
        if nsp_weight:
            loss = loss + nsp_weight * sums.nsp_nll / counts.instances
        engine.backward(loss * ranks.world_size, scale_wrt_gas=False)
        totals += stack_sums(sums)
    optimizer: ShardedOptimizer = engine.basic_optimizer
    optimizer.carry(totals)
    engine.step()
    if not optimizer.has_arrived():
        torch.distributed.all_reduce(totals)
    return totals


def forward_sums(module: Any, batch: MicroBatch, device: torch.device) -> PretrainingSums:
    """Loss sums and hits of a micro-batch, by a BertForPreTraining or DeepSpeed's engine of it."""
    batch = to_device(batch, device)
    mlm_logits, nsp_logits = module(batch, batch.masked_positions)
    labels = batch.masked_labels, batch.is_random_next
    return pretraining_sums(mlm_logits, nsp_logits, *labels, module.mlm_head.sums)


def stack_sums(sums: PretrainingSums) -> Tensor:
    """float64 [4] on the device: MLM loss, NSP loss, MLM hits, NSP hits."""
    values = (sums.mlm_nll, sums.nsp_nll, sums.num_mlm_correct, sums.num_nsp_correct)
    return torch.stack([value.detach().double() for value in values])


def seed_dropout(seed: int, phase: int, step: int, rank: int) -> None:
    """Keys torch's generators to a step, so that dropout needs no saved state."""
    torch.manual_seed(seed_of(f"{seed}/dropout/{phase}/{step}/{rank}", num_bytes=8) >> 1)


def grad_norm(engine: Any, optimizer: ShardedOptimizer) -> float:
    """Global L2 norm of the last gradient before clipping; infinite if that was not finite."""
    return math.inf if getattr(engine.optimizer, "overflow", False) else optimizer.grad_norm
