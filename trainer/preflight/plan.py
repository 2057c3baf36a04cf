"""What a run will take (`python -m trainer plan`): tokens, epochs, hours, memory, bandwidth.

Everything follows from formulas, the dataset's manifest and its first block; nothing is trained.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset, read_block
from pipeline.storage.folder import parse_storage_options
from trainer.model.config import BertConfig
from trainer.model.flops import Lengths, num_parameters, training_flops
from trainer.order.source import Mixture, open_mixture
from trainer.preflight.memory import MASKED_SHARE, Case, count_memory
from trainer.preflight.settings import PlanSettings
from trainer.process.gpus import GPUS
from trainer.runs.epochs import lengthen_phases, main_of
from trainer.settings import Phase, resolve

MFU = 0.4
"""Share of the peak that training reaches, counting the mathematics of real tokens only."""
_RECOMPUTED = 4 / 3
"""Mathematics with activation checkpointing, a second forward pass, over those without."""
_DEFAULT_VOCAB_SIZE = 30_522


@dataclass(frozen=True)
class PhasePlan:
    """One phase.

    Attributes:
        phase: The phase as configured.
        lengths: Means over the dataset's instances, or full ones where no dataset is given.
        stored_bytes: Bytes of an instance in the dataset; 0 without one.
        instances_a_pass: Train instances until one pass is through; 0 without a dataset.
        passes: How many passes the dataset has; 0 without one.
        flops: Floating point operations of one instance.
        step_seconds: The least seconds of a step, of its mathematics alone.
    """

    phase: Phase
    lengths: Lengths
    stored_bytes: float
    instances_a_pass: int
    passes: int
    flops: float
    step_seconds: float

    @property
    def instances(self) -> int:
        """Instances that the phase trains on."""
        return self.phase.steps * self.phase.global_batch

    @property
    def tokens(self) -> float:
        """Tokens that the phase trains on."""
        return self.instances * self.lengths.tokens

    @property
    def seconds(self) -> float:
        """The least seconds that the phase takes."""
        return self.phase.steps * self.step_seconds


def plan_phases(settings: PlanSettings, config: BertConfig, mixture: Mixture) -> list[PhasePlan]:
    """All phases, with steps for the epochs that are asked for, where they are."""
    main, share = main_of(mixture) if mixture else (None, 1.0)
    dataset = main.dataset if main else None
    phases = [plan_phase(phase, config, dataset, settings, share) for phase in settings.phases]
    longer = lengthen_phases(settings, [each.instances_a_pass for each in phases])
    return [replace(each, phase=phase) for each, phase in zip(phases, longer, strict=True)]


def plan_phase(
    phase: Phase,
    config: BertConfig,
    dataset: Dataset | None,
    settings: PlanSettings,
    share: float = 1.0,
) -> PhasePlan:
    """One phase, from a dataset's totals and first block, or from full instances.

    The share is that of the phase's instances which come from the dataset.
    """
    masked = phase.seq_len - 1 if config.is_causal else phase.seq_len * MASKED_SHARE
    lengths, stored, a_pass, passes = Lengths(phase.seq_len, phase.seq_len**2, masked), 0.0, 0, 0
    if dataset is not None:
        passes = dataset.num_passes("train", phase.seq_len)
        shards = dataset.shards("train", phase.seq_len, 0)
        a_pass = sum(shard.instances for shard in shards)
        stored = sum(shard.num_bytes for shard in shards) / a_pass
        lengths = measure_lengths(read_block(dataset, shards[0], 0))
        if config.is_causal:
            lengths = replace(lengths, masked=lengths.tokens - 1)
    flops = training_flops(config, lengths)
    again = _RECOMPUTED if settings.activation_checkpointing else 1.0
    of_rank = phase.global_batch / settings.world_size * flops * again
    seconds = of_rank / (peak_tflops(settings) * 1e12 * MFU)
    return PhasePlan(phase, lengths, stored, round(a_pass / share), passes, flops, seconds)


def measure_lengths(block: Block) -> Lengths:
    """Means over a block's instances, which are a shuffled sample of its bucket."""
    tokens_B = np.diff(block.offsets).astype(np.float64)
    masked = block.num_masked / block.num_instances
    return Lengths(float(tokens_B.mean()), float(np.square(tokens_B).mean()), masked)


def memory_case(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan], zero_stage: int
) -> Case:
    """What the memory of a rank depends on, for the fullest of the phases."""
    of_steps = [each.phase.global_batch * each.lengths.tokens for each in phases]
    tokens = max(of_steps) / settings.world_size
    return Case(
        config=config,
        ranks=settings.world_size,
        zero_stage=zero_stage,
        optimizer=settings.optimizer.name,
        precision=settings.precision,
        micro_tokens=min(settings.micro_tokens, math.ceil(tokens)),
        seq_len=max(each.phase.seq_len for each in phases),
        micro_batches=math.ceil(tokens / settings.micro_tokens),
        recomputes=settings.activation_checkpointing,
        is_compiled=settings.compile,
        is_cpu=settings.gpu == "cpu",
    )


def checkpoint_bytes(parameters: int, precision: str) -> int:
    """Size of a checkpoint: the model's weights, fp32 weights and both means of each."""
    return ((2 if precision == "bf16" else 4) + 12) * parameters


def peak_tflops(settings: PlanSettings) -> float:
    """TFLOP/s that were given, or those of the GPU's data sheet."""
    return settings.peak_tflops or GPUS[settings.gpu].tflops


def describe_plan(settings: PlanSettings) -> Iterator[str]:
    """The plan as lines for a person.

    Raises:
        ValueError: Settings that do not fit each other or the dataset.
    """
    settings = _check(settings)
    options = parse_storage_options(settings.storage_options)
    mixture = open_mixture(settings.data, options) if settings.data else ()
    main, share = main_of(mixture) if mixture else (None, 1.0)
    config = settings.model_config(
        main.dataset.manifest.vocab_size if main else _DEFAULT_VOCAB_SIZE
    )
    phases = plan_phases(settings, config, mixture)
    parameters = num_parameters(config)
    yield f"{settings.model.preset}: {parameters:,} parameters; {settings.world_size} x {settings.gpu}"
    if main and len(mixture) > 1:
        yield f"lengths, sizes and epochs are those of {main.name}, {share:.0%} of the mixture"
    if main is None:
        yield "no --data: every instance counts as full, 15 % of it masked, which is the most there can be"
    yield "phase  length      steps      instances           tokens   epochs  PFLOP/step      hours"
    yield from (_format_phase(index, each) for index, each in enumerate(phases))
    if settings.epochs is not None:
        steps = " ".join(str(each.phase.steps) for each in phases)
        yield f"steps are those of {settings.epochs:g} epochs: pretrain --epochs {settings.epochs:g}, or --steps {steps}"
    if settings.budget_hours is not None:
        yield f"steps are shares of the budget of {settings.budget_hours:g} hours, which decides how many are made"
    seconds, tokens = sum(each.seconds for each in phases), sum(each.tokens for each in phases)
    yield (
        f"time: at least {_hours(seconds)} hours, {_hours(seconds * settings.world_size)} GPU hours;"
        f" {tokens:,.0f} tokens, {tokens / seconds:,.0f} a second"
    )
    yield (
        f"      at {MFU:.0%} of {peak_tflops(settings):,g} TFLOP/s a GPU; no GPU has measured this yet; kernels'"
        " starts, exchange, updates, checkpoints and validation come on top"
    )
    yield from _describe_memory(settings, config, phases)
    size, count = checkpoint_bytes(parameters, settings.precision), settings.checkpoint.keep
    yield f"checkpoints: {size / 1e9:.2f} GB each, {count or 'all'} kept"
    yield from _describe_reading(settings, phases)


def _check(settings: PlanSettings) -> PlanSettings:
    if settings.world_size < 1:
        raise ValueError(f"world_size is {settings.world_size}; give at least 1")
    if settings.gpu == "cpu" and settings.peak_tflops is None:
        raise ValueError(
            "no data sheet is known for a CPU; give --peak_tflops, what one rank reaches in large products"
        )
    resolved = resolve(settings)
    assert isinstance(resolved, PlanSettings)
    return resolved


def _format_phase(index: int, each: PhasePlan) -> str:
    a_pass = each.instances_a_pass
    epochs = f"{each.instances / a_pass:8.1f}" if a_pass else "       ?"
    step = each.phase.global_batch * each.flops / 1e15
    return (
        f"{index:5}  {each.phase.seq_len:6}  {each.phase.steps:9,}  {each.instances:13,}  {each.tokens:15,.0f}"
        f"  {epochs}  {step:10,.3f}  {_hours(each.seconds):>9}"
    )


def _describe_memory(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan]
) -> Iterator[str]:
    gpu = GPUS[settings.gpu]
    where = f"{settings.gpu} of {gpu.memory_gb} GB" if gpu.memory_gb else "a process's tensors"
    tokens = f"micro_tokens {settings.micro_tokens:,}"
    yield f"memory of the fullest rank, {where}, {settings.precision}, {tokens}, in GB:"
    yield "  ZeRO    held  in a step    total"
    refused = {("bf16", 0), ("lamb", 3)}
    for stage in (0, 1, 2, 3):
        if {(settings.precision, stage), (settings.optimizer.name, stage)} & refused:
            continue
        found = count_memory(memory_case(settings, config, phases, stage))
        held = sum(found.held.values())
        sizes = "{:7.2f} {:10.2f} {:8.2f}".format(
            *(each / 1e9 for each in (held, found.total - held, found.total))
        )
        yield f"  {stage:4} {sizes}{'  <- zero_stage' if stage == settings.zero_stage else ''}"
    found = count_memory(memory_case(settings, config, phases, settings.zero_stage))
    yield f"  held: {_terms(found.held)}"
    yield f"  in a step, fullest in its {found.fullest}: {_terms(found.moments[found.fullest])}"


def _terms(terms: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / 1e9:.2f}" for name, size in terms.items())


def _describe_reading(settings: PlanSettings, phases: Sequence[PhasePlan]) -> Iterator[str]:
    for index, each in enumerate(phases):
        if not each.stored_bytes:
            continue
        length, needed = each.phase.seq_len, -(-each.instances // each.instances_a_pass)
        rate = each.instances / each.seconds * each.stored_bytes / 1e6
        yield (
            f"reading L{length}: {rate:,.1f} MB/s by all ranks, {rate / settings.world_size:,.2f} MB/s"
            f" each; {each.stored_bytes:,.0f} bytes an instance"
        )
        if needed < each.passes:
            yield f"warning: phase {index} reads {needed} of the {each.passes} passes of L{length}; more are not needed"
        if needed > each.passes:
            times = needed / each.passes
            yield f"warning: phase {index} reads the {each.passes} pass(es) of L{length} {times:.1f} times over"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.{2 if hours < 10 else 1 if hours < 100 else 0}f}"
