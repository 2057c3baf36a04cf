"""What a run will take, said before it starts (`python -m trainer plan`): tokens, epochs, hours, memory, bandwidth.

Everything follows from formulas (trainer.flops, and those in the docstrings here) and from the dataset's manifest and
first block; nothing is trained. May import numpy, pipeline.shards and this package, not torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.shards.block import Block, checksum, decode_block
from pipeline.shards.dataset import Dataset
from pipeline.shards.storage import parse_storage_options
from trainer.flops import Lengths, num_parameters, training_flops
from trainer.gpus import GPUS
from trainer.model.config import BertConfig
from trainer.settings import Phase, resolve
from trainer.stream.source import open_mixture
from trainer.tool_settings import PlanSettings

_DEFAULT_VOCAB_SIZE = 30_522
_FULL_SHARE_MASKED = 0.15
_ACTIVATION_BYTES = 34  # a token, layer and hidden unit, 2-byte values (Korthikanti et al. 2022, 4.1, without 5as/h)
_LOGIT_BYTES = 10  # a masked position and vocabulary entry: logits in 2 bytes, in fp32 for the loss, and a gradient


@dataclass(frozen=True)
class PhasePlan:
    """One phase.

    Attributes:
        phase: As configured.
        lengths: Means over the dataset's instances, or full ones where no dataset is given.
        stored_bytes: Of an instance in the dataset; 0 without one.
        instances_a_pass: Train instances of this length until one pass is through; 0 without a dataset.
        passes: Of the dataset; 0 without one.
        flops: Of one instance.
        seconds: Of the phase.
    """

    phase: Phase
    lengths: Lengths
    stored_bytes: float
    instances_a_pass: int
    passes: int
    flops: float
    seconds: float

    @property
    def instances(self) -> int:
        """Instances that the phase trains on."""
        return self.phase.steps * self.phase.global_batch


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU.

    Attributes:
        weights: In the precision of the passes.
        gradients: In that precision, and their sums in fp32.
        optimizer: fp32 weights and both running means, or this rank's part of them.
        activations: Of one micro-batch, attention done without its matrix.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All four."""
        return self.weights + self.gradients + self.optimizer + self.activations


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
    peak_tflops, memory_gb = GPUS[settings.gpu]
    rate = settings.gpus * (settings.peak_tflops or peak_tflops) * 1e12 * settings.mfu
    part = main.weight / sum(each.weight for each in mixture) if main else 1.0
    phases = [plan_phase(phase, config, main.dataset if main else None, rate, part) for phase in settings.phases]
    parameters = num_parameters(config)
    yield f"{settings.model.preset}: {parameters:,} parameters; {settings.gpus} x {settings.gpu}"
    if main and len(mixture) > 1:
        yield f"lengths, sizes and epochs are those of {main.name}, {part:.0%} of the mixture"
    if main is None:
        yield "no --data: every instance counts as full, 15 % of it masked, which is the most there can be"
    yield "phase  length      steps      instances           tokens   epochs  PFLOP/step      hours"
    yield from (_format_phase(index, each) for index, each in enumerate(phases))
    if settings.budget_hours is not None:
        yield f"steps are shares of the budget of {settings.budget_hours:g} hours, which decides how many are made"
    seconds = sum(each.seconds for each in phases)
    tokens = sum(each.instances * each.lengths.tokens for each in phases)
    share = f"{settings.mfu:.0%} of {settings.peak_tflops or peak_tflops:,.0f} TFLOP/s a GPU"
    yield f"time: {seconds / 3600:,.1f} hours at {share}; {tokens:,.0f} tokens, {tokens / seconds:,.0f} a second"
    yield f"       {seconds / 3600 * settings.gpus:,.0f} GPU hours; checkpoints, validation and starts come on top"
    yield from _describe_memory(settings, config, memory_gb)
    size, count = checkpoint_bytes(parameters, settings.precision), settings.checkpoint.keep
    yield f"checkpoints: {_gigabytes(size)} each, {count or 'all'} kept"
    yield from _describe_reading(settings, phases)
    yield from (f"warning: {each}" for each in _warnings(settings, phases))


def plan_phase(
    phase: Phase, config: BertConfig, dataset: Dataset | None, flops_per_second: float, share: float = 1.0
) -> PhasePlan:
    """One phase, from the dataset's totals and first block, or from full instances.

    Args:
        phase: As configured.
        config: Of the model.
        dataset: If there is one.
        flops_per_second: Of all GPUs together, as they will really be reached.
        share: Of the phase's instances that come from the dataset.

    Raises:
        ValueError: The dataset has no instances of this length.
    """
    masked = phase.seq_len - 1 if config.is_causal else phase.seq_len * _FULL_SHARE_MASKED
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
    seconds = phase.steps * phase.global_batch * flops / flops_per_second
    return PhasePlan(phase, lengths, stored, round(a_pass / share), passes, flops, seconds)


def measure_lengths(block: Block) -> Lengths:
    """Means over a block's instances, which are a shuffled sample of its bucket."""
    tokens_B = np.diff(block.offsets).astype(np.float64)
    return Lengths(float(tokens_B.mean()), float(np.square(tokens_B).mean()), block.num_masked / block.num_instances)


def estimate_memory(config: BertConfig, settings: PlanSettings, zero_stage: int) -> Memory:
    """Bytes on one GPU under a ZeRO stage (Rajbhandari et al. 2020, section 3): what it partitions is divided by GPUs.

    Communication buffers, the allocator's waste and CUDA itself, some 2 to 4 GB, come on top.
    """
    parameters, ranks = num_parameters(config), settings.gpus
    value_bytes = 2 if settings.precision == "bf16" else 4
    sums = 4 * parameters if settings.precision == "bf16" else 0
    is_master_apart = settings.precision == "bf16" or zero_stage > 0
    optimizer = (12 if is_master_apart else 8) * parameters
    gradients = value_bytes * parameters + (sums // ranks if zero_stage >= 2 else sums)
    weights = value_bytes * parameters
    if zero_stage == 3:
        weights, gradients = weights // ranks, (value_bytes * parameters + sums) // ranks
    tokens, wide = settings.micro_tokens, value_bytes / 2
    a_layer = _ACTIVATION_BYTES * config.hidden_size * tokens * wide
    layers = a_layer * config.num_layers
    if settings.activation_checkpointing:  # inputs of all layers, and one layer's insides at a time
        layers = a_layer + config.num_layers * config.hidden_size * tokens * value_bytes
    predicted = 1.0 if config.is_causal else _FULL_SHARE_MASKED
    logits = _LOGIT_BYTES * config.vocab_size * predicted * tokens
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer // ranks if zero_stage >= 1 else optimizer,
        activations=round(layers + logits),
    )


def checkpoint_bytes(parameters: int, precision: str) -> int:
    """Size of a checkpoint: the model's weights, and fp32 weights and both running means of every parameter."""
    return ((2 if precision == "bf16" else 4) + 12) * parameters


def _check(settings: PlanSettings) -> PlanSettings:
    if settings.gpus < 1 or not 0 < settings.mfu <= 1:
        raise ValueError(f"gpus is {settings.gpus} and mfu {settings.mfu}; give at least 1 GPU and an mfu in (0, 1]")
    resolved = resolve(settings)
    assert isinstance(resolved, PlanSettings)
    return resolved


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
        f"  {step:10,.3f}  {each.seconds / 3600:9,.2f}"
    )


def _describe_memory(settings: PlanSettings, config: BertConfig, memory_gb: int) -> Iterator[str]:
    yield f"memory of a GPU ({memory_gb} GB), {settings.precision}, micro_tokens {settings.micro_tokens:,}, estimated:"
    yield "  ZeRO   weights  gradients  optimizer  activations      total"
    for stage in (0, 1, 2, 3):
        if settings.precision == "bf16" and stage == 0:
            continue  # refused by the trainer: DeepSpeed cannot sum bf16 gradients in fp32 there
        if settings.optimizer.name == "lamb" and stage == 3:
            continue  # refused as well
        found = estimate_memory(config, settings, stage)
        columns = (found.weights, found.gradients, found.optimizer, found.activations, found.total)
        texts = [_gigabytes(each).rjust(width) for each, width in zip(columns, (9, 10, 10, 12, 10), strict=True)]
        chosen = "  <- zero_stage" if stage == settings.zero_stage else ""
        yield f"  {stage:4} {' '.join(texts)}{chosen}"


def _describe_reading(settings: PlanSettings, phases: list[PhasePlan]) -> Iterator[str]:
    for each in phases:
        if each.stored_bytes:
            rate = each.instances / each.seconds * each.stored_bytes
            yield (
                f"reading L{each.phase.seq_len}: {rate / 1e6:,.1f} MB/s by all ranks,"
                f" {rate / settings.gpus / 1e6:,.2f} MB/s each; {each.stored_bytes:,.0f} bytes an instance"
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
        if each.phase.global_batch * each.lengths.tokens < settings.gpus * settings.micro_tokens / 2:
            tokens = each.phase.global_batch * each.lengths.tokens / settings.gpus
            yield f"phase {index} gives a GPU {tokens:,.0f} tokens a step: too few to keep a large one busy"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
