"""What a run will take (`python -m trainer plan`): tokens, epochs, hours, memory, bandwidth.

Everything follows from formulas (trainer.model.flops, trainer.preflight.step_time,
trainer.optim.memory) and from the dataset's manifest and first block; nothing is trained, and torch
is not imported.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.shards.block import Block, checksum, decode_block
from pipeline.shards.dataset import Dataset
from pipeline.storage.folder import parse_storage_options
from trainer.model.config import BertConfig
from trainer.model.flops import Lengths, num_parameters, training_flops
from trainer.optim.memory import MASKED_SHARE, Case, count_memory
from trainer.preflight.step_time import FAST, SLOW, StepTime, Work, step_time
from trainer.process.gpus import GPUS, Gpu
from trainer.settings import Phase, resolve
from trainer.stream.source import Mixture, WeightedDataset, open_mixture
from trainer.tool_settings import PlanSettings

_DEFAULT_VOCAB_SIZE = 30_522
_MUCH_IDLE = 0.3  # of a step's time at the fast end
_STEPS_PLANNED = 512  # by the stream at once


@dataclass(frozen=True)
class PhasePlan:
    """One phase.

    Attributes:
        phase: The phase as configured.
        lengths: Means over the dataset's instances, or full ones where no dataset is given.
        stored_bytes: Bytes of an instance in the dataset; 0 without one.
        instances_a_pass: Train instances of this length until one pass is through; 0 without a
            dataset.
        passes: How many passes the dataset has; 0 without one.
        flops: Floating point operations of one instance.
        fast: A step's time at the fast end of its range.
        slow: A step's time at the slow end.
    """

    phase: Phase
    lengths: Lengths
    stored_bytes: float
    instances_a_pass: int
    passes: int
    flops: float
    fast: StepTime
    slow: StepTime

    @property
    def instances(self) -> int:
        """Instances that the phase trains on."""
        return self.phase.steps * self.phase.global_batch

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of the phase, at the fast end and at the slow one."""
        return self.phase.steps * self.fast.total, self.phase.steps * self.slow.total


def describe_plan(settings: PlanSettings) -> Iterator[str]:
    """The plan as lines for a person.

    Raises:
        ValueError: Settings that do not fit each other or the dataset.
    """
    settings = _check(settings)
    mixture = open_mixture(settings.data, parse_storage_options(settings.storage_options)) if settings.data else ()
    main = max(mixture, key=lambda each: each.weight) if mixture else None
    vocab_size = main.dataset.manifest.vocab_size if main else _DEFAULT_VOCAB_SIZE
    config = settings.model_config(vocab_size)
    phases = plan_phases(settings, config, mixture)
    parameters = num_parameters(config)
    yield f"{settings.model.preset}: {parameters:,} parameters; {settings.world_size} x {settings.gpu}"
    if main and len(mixture) > 1:
        part = _share_of(main, mixture)
        yield f"lengths, sizes and epochs are those of {main.name}, {part:.0%} of the mixture"
    if main is None:
        yield "no --data: every instance counts as full, 15 % of it masked, which is the most there can be"
    yield "phase  length      steps      instances           tokens   epochs  PFLOP/step          hours"
    yield from (_format_phase(index, each) for index, each in enumerate(phases))
    if settings.epochs is not None:
        steps = " ".join(str(each.phase.steps) for each in phases)
        yield f"steps are those of {settings.epochs:g} epochs: pretrain --steps {steps}"
    if settings.budget_hours is not None:
        yield f"steps are shares of the budget of {settings.budget_hours:g} hours, which decides how many are made"
    yield from _describe_time(settings, phases)
    yield from _describe_memory(settings, config, phases)
    size, count = checkpoint_bytes(parameters, settings.precision), settings.checkpoint.keep
    yield f"checkpoints: {_gigabytes(size)} each, {count or 'all'} kept"
    yield from _describe_reading(settings, phases)
    yield from (f"warning: {each}" for each in _warnings(settings, phases))


def plan_phases(settings: PlanSettings, config: BertConfig, mixture: Mixture) -> list[PhasePlan]:
    """All phases, with steps for the epochs that are asked for, where they are.

    Raises:
        ValueError: The dataset has no instances of a length, or epochs are asked for and there is
            none.
    """
    main = max(mixture, key=lambda each: each.weight) if mixture else None
    dataset, share = (main.dataset, _share_of(main, mixture)) if main else (None, 1.0)
    phases = [plan_phase(phase, config, dataset, settings, share) for phase in settings.phases]
    if settings.epochs is None:
        return phases
    factor = settings.epochs / sum(each.instances / each.instances_a_pass for each in phases)
    longer = [replace(phase, steps=max(1, round(phase.steps * factor))) for phase in settings.phases]
    return [replace(each, phase=phase) for each, phase in zip(phases, longer, strict=True)]


def device_of(settings: PlanSettings) -> Gpu:
    """The GPU of the data sheet, with the TFLOP/s that were given, if any."""
    gpu = GPUS[settings.gpu]
    return replace(gpu, tflops=settings.peak_tflops or gpu.tflops)


def plan_phase(
    phase: Phase, config: BertConfig, dataset: Dataset | None, settings: PlanSettings, share: float = 1.0
) -> PhasePlan:
    """One phase, from the dataset's totals and first block, or from full instances.

    Args:
        phase: The phase as configured.
        config: Sizes of the model.
        dataset: The dataset, if there is one.
        settings: The GPUs, and what a step does besides.
        share: Share of the phase's instances that come from the dataset.

    Raises:
        ValueError: The dataset has no instances of this length.
    """
    masked = phase.seq_len - 1 if config.is_causal else phase.seq_len * MASKED_SHARE
    lengths, stored, a_pass, passes = Lengths(phase.seq_len, phase.seq_len**2, masked), 0.0, 0, 0
    if dataset is not None:
        passes = dataset.num_passes("train", phase.seq_len)
        shards = dataset.shards("train", phase.seq_len, 0)
        a_pass = sum(shard.instances for shard in shards)
        stored = sum(shard.num_bytes for shard in shards) / a_pass
        lengths = measure_lengths(_first_block(dataset, phase.seq_len))
        if config.is_causal:
            lengths = replace(lengths, masked=lengths.tokens - 1)
    flops = training_flops(config, lengths)
    work = _work_of(phase, config, settings, lengths, flops)
    fast, slow = (step_time(work, device_of(settings), assumed) for assumed in (FAST, SLOW))
    return PhasePlan(phase, lengths, stored, round(a_pass / share), passes, flops, fast, slow)


def _work_of(phase: Phase, config: BertConfig, settings: PlanSettings, lengths: Lengths, flops: float) -> Work:
    """What a step of a phase asks of a rank; every micro-batch but the last is taken to be full."""
    instances = phase.global_batch / settings.world_size
    return Work(
        flops=instances * flops,
        micro_batches=math.ceil(instances * lengths.tokens / settings.micro_tokens),
        num_layers=config.num_layers,
        num_parameters=num_parameters(config),
        ranks=settings.world_size,
        mfu=settings.mfu,
        optimizer=settings.optimizer.name,
        zero_stage=settings.zero_stage,
        value_bytes=2 if settings.precision == "bf16" else 4,
        recomputes=settings.activation_checkpointing,
        is_compiled=settings.compile,
    )


def measure_lengths(block: Block) -> Lengths:
    """Means over a block's instances, which are a shuffled sample of its bucket."""
    tokens_B = np.diff(block.offsets).astype(np.float64)
    return Lengths(float(tokens_B.mean()), float(np.square(tokens_B).mean()), block.num_masked / block.num_instances)


def memory_case(settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan], zero_stage: int) -> Case:
    """What the memory of a rank depends on, for the fullest of the phases."""
    shares = [each.phase.global_batch * each.lengths.tokens / settings.world_size for each in phases]
    return Case(
        config=config,
        ranks=settings.world_size,
        zero_stage=zero_stage,
        optimizer=settings.optimizer.name,
        precision=settings.precision,
        micro_tokens=min(settings.micro_tokens, math.ceil(max(shares))),
        seq_len=max(each.phase.seq_len for each in phases),
        micro_batches=math.ceil(max(shares) / settings.micro_tokens),
        recomputes=settings.activation_checkpointing,
        is_cpu=settings.gpu == "cpu",
        stream_bytes=max(_stream_bytes(settings, each) for each in phases),
    )


def _stream_bytes(settings: PlanSettings, each: PhasePlan) -> int:
    """Blocks of the steps planned together, stored and decoded (docs/order.md)."""
    instances = _STEPS_PLANNED * each.phase.global_batch / settings.world_size
    if each.instances_a_pass:
        instances = min(instances, each.instances_a_pass * each.passes)
    stored = each.stored_bytes or 2 * each.lengths.tokens
    return min(settings.reading.buffer_bytes, round(3 * stored * instances))


def checkpoint_bytes(parameters: int, precision: str) -> int:
    """Size of a checkpoint: the model's weights, fp32 weights and both means of each."""
    return ((2 if precision == "bf16" else 4) + 12) * parameters


def _check(settings: PlanSettings) -> PlanSettings:
    if settings.world_size < 1 or not 0 < settings.mfu <= 1:
        raise ValueError(
            f"world_size is {settings.world_size} and mfu {settings.mfu}; give at least 1 GPU and an mfu in (0, 1]"
        )
    if settings.gpu == "cpu" and settings.peak_tflops is None:
        raise ValueError(
            "no data sheet is known for a CPU; give --peak_tflops, what one rank reaches in large products"
        )
    if settings.epochs is not None:
        _check_epochs(settings.epochs, settings)
    resolved = resolve(settings)
    assert isinstance(resolved, PlanSettings)
    return resolved


def _check_epochs(epochs: float, settings: PlanSettings) -> None:
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs is {epochs}; give a number above 0")
    if not settings.data:
        raise ValueError("epochs are passes over a dataset; give --data, or --steps without epochs")
    if settings.steps or settings.budget_hours is not None:
        raise ValueError("epochs decides the steps; leave steps and budget_hours out")


def _share_of(main: WeightedDataset, mixture: Mixture) -> float:
    return main.weight / sum(each.weight for each in mixture)


def _first_block(dataset: Dataset, seq_len: int) -> Block:
    shard = dataset.shards("train", seq_len, 0)[0]
    table, where = dataset.blocks(shard), f"{dataset.locate(shard.name)} block 0"
    start = int(table.offset[0])
    data = dataset.read_bytes(shard.name, start, start + int(table.size[0]))
    if checksum(data) != int(table.crc32[0]):
        raise ValueError(f"{where}: damaged: its crc32 is not the block table's; restore or rebuild the dataset")
    return decode_block(data, where)


def _format_phase(index: int, each: PhasePlan) -> str:
    epochs = f"{each.instances / each.instances_a_pass:8.1f}" if each.instances_a_pass else "       ?"
    tokens = each.instances * each.lengths.tokens
    step = each.phase.global_batch * each.flops / 1e15
    return (
        f"{index:5}  {each.phase.seq_len:6}  {each.phase.steps:9,}  {each.instances:13,}  {tokens:15,.0f}  {epochs}"
        f"  {step:10,.3f}  {_hours(each.seconds):>13}"
    )


def _describe_time(settings: PlanSettings, phases: list[PhasePlan]) -> Iterator[str]:
    """Both ends of the range, and what a step of each phase is made of."""
    ends = [sum(seconds) for seconds in zip(*(each.seconds for each in phases), strict=True)]
    tokens = sum(each.instances * each.lengths.tokens for each in phases)
    rates = " to ".join(f"{tokens / seconds:,.0f}" for seconds in reversed(ends))
    days = " to ".join(f"{seconds / 3600 * settings.world_size:,.0f}" for seconds in ends)
    yield f"time: {_hours(ends)} hours; {tokens:,.0f} tokens, {rates} a second; no GPU has measured this yet"
    yield (
        f"      {days} GPU hours; {settings.mfu:.0%} to {settings.mfu * SLOW.mfu_share:.0%} of"
        f" {device_of(settings).tflops:,g} TFLOP/s a GPU; checkpoints, validation and starts come on top"
    )
    for index, each in enumerate(phases):
        names = ("mathematics", "launches", "optimizer", "exchange", "once")
        parts = [f"{name} {_milliseconds(getattr(each.fast, name), getattr(each.slow, name))}" for name in names]
        total = _milliseconds(each.fast.total, each.slow.total)
        yield f"step of phase {index}: {total} ms: the longer of {parts[0]} and {', '.join(parts[1:])}"


def _describe_memory(settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan]) -> Iterator[str]:
    where = "a process" if settings.gpu == "cpu" else f"{settings.gpu} of {device_of(settings).memory_gb} GB"
    tokens = f"micro_tokens {settings.micro_tokens:,}"
    yield f"memory of the fullest rank, {where}, {settings.precision}, {tokens}, in GB:"
    yield "  ZeRO    held  in a step  process    total"
    for stage in (0, 1, 2, 3):
        if settings.precision == "bf16" and stage == 0:
            continue  # refused by the trainer: DeepSpeed cannot sum bf16 gradients in fp32 there
        if settings.optimizer.name == "lamb" and stage == 3:
            continue  # refused as well
        found = count_memory(memory_case(settings, config, phases, stage))
        held, process = sum(found.held.values()), sum(found.process.values())
        columns = (held, found.tensors - held, process, found.total)
        texts = [f"{each / 1e9:.2f}".rjust(width) for each, width in zip(columns, (7, 10, 8, 8), strict=True)]
        yield f"  {stage:4} {' '.join(texts)}{'  <- zero_stage' if stage == settings.zero_stage else ''}"
    found = count_memory(memory_case(settings, config, phases, settings.zero_stage))
    yield f"  held: {_terms(found.held)}"
    yield f"  in a step, fullest in its {found.fullest}: {_terms(found.moments[found.fullest])}"
    if found.process:
        yield f"  process: {_terms(found.process)}"


def _terms(terms: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / 1e9:.2f}" for name, size in terms.items())


def _describe_reading(settings: PlanSettings, phases: list[PhasePlan]) -> Iterator[str]:
    for each in phases:
        if each.stored_bytes:
            rate = each.instances / each.seconds[0] * each.stored_bytes
            yield (
                f"reading L{each.phase.seq_len}: {rate / 1e6:,.1f} MB/s by all ranks,"
                f" {rate / settings.world_size / 1e6:,.2f} MB/s each; {each.stored_bytes:,.0f} bytes an instance"
            )


def _warnings(settings: PlanSettings, phases: list[PhasePlan]) -> Iterator[str]:
    for index, each in enumerate(phases):
        length = each.phase.seq_len
        if each.instances_a_pass:
            needed = -(-each.instances // each.instances_a_pass)
            if needed < each.passes:
                yield f"phase {index} reads {needed} of the {each.passes} passes of L{length}; more are not needed"
            if needed > each.passes:
                times = needed / each.passes
                yield f"phase {index} reads the {each.passes} pass(es) of L{length} {times:.1f} times over"
        if each.fast.idle_share > _MUCH_IDLE and settings.gpu != "cpu":
            idle = f"{each.fast.idle_share:.0%} to {each.slow.idle_share:.0%}"
            tokens = each.phase.global_batch * each.lengths.tokens / settings.world_size
            remedy = (
                "fewer GPUs, or a larger global_batch, lose"
                if settings.world_size > 1
                else "a larger global_batch loses"
            )
            yield (
                f"phase {index} is too small for this hardware: of each step a GPU idles {idle}, as it gets"
                f" {tokens:,.0f} tokens; {remedy} little"
            )


def _hours(seconds: Sequence[float]) -> str:
    return " to ".join(_three_digits(each / 3600) for each in seconds)


def _milliseconds(fast: float, slow: float) -> str:
    return f"{_three_digits(1000 * fast)} to {_three_digits(1000 * slow)}"


def _three_digits(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
