"""DeepSpeed behind three functions: start an engine, agree on a step, make it.

DeepSpeed partitions states and gradients (ZeRO) and reduces gradients; what a step is, its loss,
clipping and learning rate are ours. Its settings files hold only what `CHOOSABLE` lists.
"""

import importlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Module

from pipeline.seeds import seed_of
from trainer.model.heads import PretrainingSums, pretraining_sums
from trainer.optim.memory import bucket_elements
from trainer.optim.partitions import adopt_partitions, check_partitions
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, quiet_deepspeed
from trainer.stream.packing import MicroBatch, empty_micro_batch, to_device

# What a settings file for DeepSpeed may say; the trainer writes everything else.
CHOOSABLE = (
    "zero_optimization",
    "comms_logger",
    "flops_profiler",
    "wall_clock_breakdown",
    "memory_breakdown",
)
CHOOSABLE_ZERO = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "use_multi_rank_bucket_allreduce",
    "round_robin_gradients",
    "parameter_alignment",
)


@dataclass(frozen=True)
class StepCounts:
    """What all ranks must know of a step before its first backward pass.

    Attributes:
        num_micro_batches: Backward passes every rank makes: the most any rank needs.
        instances: Instances of the global batch.
        masked: Masked positions of the global batch.
        tokens: Real tokens of the global batch.
        squared_tokens: Sum of the squares of its instances' lengths, which attention costs.
        most_tokens: Tokens of the rank that has most.
        wait_seconds: Longest wait for data on any rank.
        must_stop: Whether any rank was told to stop.
        elapsed_seconds: Most seconds any rank has spent on the phase.
        memory_bytes: Most memory that any rank has held before the step.
        drawn: Instances and tokens of every dataset of the mixture, over all ranks.
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


def read_deepspeed_file(path: str | None) -> dict[str, Any]:
    """The choices in a DeepSpeed settings file; none without a file.

    Raises:
        ValueError: A key that is not in `CHOOSABLE`, or not JSON.
        FileNotFoundError: No such file.
    """
    if path is None:
        return {}
    try:
        chosen = json.loads(Path(path).read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    _refuse_unknown(chosen, CHOOSABLE, path)
    _refuse_unknown(
        chosen.get("zero_optimization", {}), CHOOSABLE_ZERO, f"{path}: zero_optimization"
    )
    return dict(chosen)


def deepspeed_config(chosen: dict[str, Any], zero_stage: int, precision: str) -> dict[str, Any]:
    """DeepSpeed's settings: the person's choices and ours.

    Args:
        chosen: What `read_deepspeed_file` returned.
        zero_stage: 0 to 3.
        precision: "fp32" or "bf16"; gradients are summed and reduced in fp32 either way, because
            bf16 sums, which are DeepSpeed's default, were off by 0.84 % over 64 micro-batches.
    """
    if precision == "bf16" and zero_stage == 0:
        raise ValueError(
            "DeepSpeed cannot sum bf16 gradients in fp32 with zero_stage 0; use zero_stage 1 or 2"
        )
    zero = {**chosen.get("zero_optimization", {}), "stage": zero_stage}
    if zero.get("overlap_comm") and zero_stage != 2:
        raise ValueError(f"overlap_comm works with zero_stage 2 only, not {zero_stage}")
    if zero_stage == 1 and precision == "fp32":
        zero.setdefault("contiguous_gradients", False)  # not two more copies of all gradients
    if zero_stage == 3:
        zero["sub_group_size"] = 2**62  # one group, so that clipping sees all gradients at once
    if zero_stage == 2 or (zero_stage == 1 and precision == "fp32"):
        zero["compute_grad_norm"] = (
            False  # ours comes with clipping, and theirs would be one more all-reduce
        )
    return {
        **chosen,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {
            "enabled": precision == "bf16",
            "immediate_grad_update": True,
        },  # not one more copy of all gradients
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "timers": {
            "throughput": {"enabled": False}
        },  # it waits for the device before every forward pass
        # The loop decides where a step ends and what the loss is divided by; these are dummies.
        "managed_gradient_accumulation": False,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
    }


def start_engine(
    model: Module, optimizer: ShardedOptimizer, config: dict[str, Any], ranks: Ranks
) -> Any:
    """A DeepSpeed engine around the model.

    The optimizer then updates this rank's partition of the weights.

    Raises:
        ValueError: DeepSpeed's partitions are not what the optimizer takes them for.
    """
    with quiet_deepspeed():
        import deepspeed

        _load_muon()
        sizes = bucket_sizes(model)
        sized = {**config, "zero_optimization": {**sizes, **config["zero_optimization"]}}
        engine, *_ = deepspeed.initialize(
            model=model.to(ranks.device), optimizer=optimizer, config=sized
        )
    # Without ZeRO, and under ZeRO-1 in bf16, DeepSpeed takes this number and not the settings'.
    engine.allreduce_gradients = partial(
        engine.allreduce_gradients, bucket_size=sizes["reduce_bucket_size"]
    )
    adopt_partitions(engine, optimizer)
    check_partitions(engine, optimizer, ranks)
    return engine


def _load_muon() -> None:
    """Imports DeepSpeed's Muon, which every engine asks for, without its kernels compiled.

    They would be by an import, which loads torch's compiler: a second of every start for what
    nobody here calls.
    """
    compile_kernels = torch.compile
    torch.compile = lambda kernel: kernel  # type: ignore[assignment]
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        torch.compile = compile_kernels


def bucket_sizes(model: Module) -> dict[str, int]:
    """How much DeepSpeed reduces and gathers at once by default: at least one tensor."""
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    size = bucket_elements(sum(sizes), max(sizes))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}


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
    table = torch.zeros(
        ranks.world_size, len(mine), dtype=torch.float64
    )  # whole numbers stay exact to 2^53
    rows = list(table.unbind())
    torch.distributed.all_gather(
        rows, torch.tensor(mine, dtype=torch.float64), group=ranks.counts_group
    )
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
    has_nsp: bool = True,
) -> Tensor:
    """One optimizer step, exact for any split of the global batch over ranks and micro-batches.

    The loss is MLM sum / masked positions of the global batch + NSP sum / its instances, the latter
    if the objective has it. DeepSpeed averages over ranks, hence the factor; every rank makes the
    same number of backward passes, or ZeRO-2 would stop.

    Returns:
        float64 [4] on the device, summed over ranks: MLM loss, NSP loss, MLM hits, NSP hits.
    """
    missing = counts.num_micro_batches - len(micro_batches)
    totals = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    for batch in [*micro_batches, *[empty_micro_batch()] * missing]:
        sums = forward_sums(engine, batch, ranks.device)
        loss = sums.mlm_nll / counts.masked
        if has_nsp:
            loss = loss + sums.nsp_nll / counts.instances
        engine.backward(loss * ranks.world_size, scale_wrt_gas=False)
        totals += stack_sums(sums)
    optimizer: ShardedOptimizer = engine.basic_optimizer
    optimizer.carry(totals)
    engine.step()
    if not optimizer.has_arrived():
        torch.distributed.all_reduce(totals)
    return totals


def forward_sums(module: Any, batch: MicroBatch, device: torch.device) -> PretrainingSums:
    """Loss sums and hits of one micro-batch, by a BertForPreTraining or DeepSpeed's engine around it."""
    batch = to_device(batch, device)
    mlm_logits, nsp_logits = module(batch, batch.masked_positions)
    labels = batch.masked_labels, batch.is_random_next
    return pretraining_sums(mlm_logits, nsp_logits, *labels, module.mlm_head.sums)


def stack_sums(sums: PretrainingSums) -> Tensor:
    """float64 [4]: MLM loss, NSP loss, MLM hits, NSP hits."""
    values = (sums.mlm_nll, sums.nsp_nll, sums.num_mlm_correct, sums.num_nsp_correct)
    return torch.stack([value.detach().double() for value in values])


def seed_dropout(seed: int, phase: int, step: int, rank: int) -> None:
    """Keys torch's generators to a step, so that dropout needs no saved state."""
    torch.manual_seed(seed_of(f"{seed}/dropout/{phase}/{step}/{rank}", num_bytes=8) >> 1)


def grad_norm(engine: Any, optimizer: ShardedOptimizer) -> float:
    """Global L2 norm of the last gradient before clipping; infinite if that was not finite."""
    return math.inf if getattr(engine.optimizer, "overflow", False) else optimizer.grad_norm


def _refuse_unknown(chosen: dict[str, Any], choices: Sequence[str], where: str) -> None:
    unknown = sorted(set(chosen) - set(choices))
    if unknown:
        raise ValueError(
            f"{where} sets {', '.join(unknown)}, which the trainer decides from the run's own settings (zero_stage, "
            f"precision, phases, optimizer, micro_tokens); the file may hold {', '.join(choices)}"
        )
