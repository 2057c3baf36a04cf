"""What each phase of a run will take: its instances, operations, times and memory.

A step takes at least the longer of its mathematics, at a usual share of the GPU's peak, and of
starting its kernels one by one, which is what small models and batches wait for. Everything follows
from formulas, the dataset's manifest and its first block; nothing is trained, and torch is not
imported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.shards.block import Block
from pipeline.shards.dataset import Dataset, read_block
from trainer.model.config import BertConfig
from trainer.model.flops import Lengths, training_flops
from trainer.order.source import Mixture
from trainer.preflight.memory import MASKED_SHARE, Case
from trainer.preflight.settings import PlanSettings
from trainer.process.gpus import GPUS
from trainer.runs.epochs import lengthen_phases, main_of
from trainer.settings import Phase

MFU = 0.4
"""Share of the peak that training reaches, counting the mathematics of real tokens only."""
_STEPS_PLANNED = 512  # by the stream at once
LAYER_LAUNCHES, OUTER_LAUNCHES, COMPILED_SHARE = 80, 108, 0.6
"""Kernels of a micro-batch, for a layer and around the layers; `compile` leaves out some 40 %."""
_LAUNCH_SECONDS = 3e-6
_RECOMPUTED = 4 / 3
"""Mathematics with activation checkpointing, a second forward pass, over those without."""


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
        mathematics: Seconds of the mathematics of a step.
        launches: Seconds of starting the kernels of a step.
    """

    phase: Phase
    lengths: Lengths
    stored_bytes: float
    instances_a_pass: int
    passes: int
    flops: float
    mathematics: float
    launches: float

    @property
    def instances(self) -> int:
        """Instances that the phase trains on."""
        return self.phase.steps * self.phase.global_batch

    @property
    def seconds(self) -> float:
        """The least seconds that the phase takes."""
        return self.phase.steps * max(self.mathematics, self.launches)


def plan_phases(settings: PlanSettings, config: BertConfig, mixture: Mixture) -> list[PhasePlan]:
    """All phases, with steps for the epochs that are asked for, where they are.

    Raises:
        ValueError: The dataset has no instances of a length, or epochs are asked for and there is
            none.
    """
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
        lengths = measure_lengths(read_block(dataset, shards[0], 0))
        if config.is_causal:
            lengths = replace(lengths, masked=lengths.tokens - 1)
    flops = training_flops(config, lengths)
    instances = phase.global_batch / settings.world_size
    micro_batches = math.ceil(instances * lengths.tokens / settings.micro_tokens)
    again = _RECOMPUTED if settings.activation_checkpointing else 1.0
    kernels = LAYER_LAUNCHES * config.num_layers * again + OUTER_LAUNCHES
    return PhasePlan(
        phase,
        lengths,
        stored,
        round(a_pass / share),
        passes,
        flops,
        mathematics=instances * flops * again / (peak_tflops(settings) * 1e12 * MFU),
        launches=micro_batches
        * kernels
        * _LAUNCH_SECONDS
        * (COMPILED_SHARE if settings.compile else 1),
    )


def measure_lengths(block: Block) -> Lengths:
    """Means over a block's instances, which are a shuffled sample of its bucket."""
    tokens_B = np.diff(block.offsets).astype(np.float64)
    return Lengths(
        float(tokens_B.mean()),
        float(np.square(tokens_B).mean()),
        block.num_masked / block.num_instances,
    )


def memory_case(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan], zero_stage: int
) -> Case:
    """What the memory of a rank depends on, for the fullest of the phases."""
    shares = [
        each.phase.global_batch * each.lengths.tokens / settings.world_size for each in phases
    ]
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
        is_compiled=settings.compile,
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


def peak_tflops(settings: PlanSettings) -> float:
    """TFLOP/s that were given, or those of the GPU's data sheet."""
    return settings.peak_tflops or GPUS[settings.gpu].tflops
