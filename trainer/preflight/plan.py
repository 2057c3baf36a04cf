"""Estimates what a run will take, before it starts (`python -m trainer plan`).

Tokens, epochs, hours, communication, memory and bandwidth follow from formulas, from the dataset's
manifest and from its first block. Nothing is trained.
"""

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.shards.block import Block
from pipeline.shards.dataset import read_block
from pipeline.storage.folder import parse_storage_options
from trainer.engine.deepspeed_config import BUCKET_ELEMENTS
from trainer.engine.muon_costs import MuonCosts, count_muon_costs
from trainer.model.config import BertConfig, Lengths, num_parameters, training_flops
from trainer.preflight.communication import (
    LINKS,
    NVLINK,
    StepTime,
    Traffic,
    Wire,
    add_exchanges,
    count_traffic,
    join_ranks,
    time_step,
)
from trainer.preflight.memory import Case, count_memory
from trainer.preflight.settings import PlanSettings
from trainer.process.gpus import GPUS
from trainer.runs.check_mixture import check_mixture, refuse_small_batches
from trainer.runs.epochs import instances_per_pass, lengthen_phases, main_of
from trainer.settings import Phase, resolve
from trainer.stream.order.source import Mixture, open_mixture

MFU = 0.4
"""Share of the peak rate that training reaches. Operations on padding do not count."""
_RECOMPUTED = 4 / 3
"""Operations of a step with activation checkpointing, relative to a step without.

The forward pass is computed a second time. It is a third of a step.
"""
_WAITING_SHARE = 0.1
"""The GPUs count as used if the ranks wait for the wire during less than this share of a step."""
_LARGEST_BATCH = 2**24
"""`find_used_batch` tries no larger global batch than this."""


@dataclass(frozen=True)
class PhasePlan:
    """The estimated cost of one phase of a run.

    `lengths`, `flops` and `stored_bytes` are means over the instances of the main dataset. Without
    a dataset every instance is assumed to have the full length.

    Attributes:
        phase: Settings of the phase, with its final number of steps.
        lengths: Number of tokens of one instance, its square, and the number of predicted tokens.
        flops: Floating-point operations of training on one instance.
        micro_batches: Micro-batches of a rank in a step.
        traffic: What a rank sends in a step.
        step: The least time that a step can take, for arithmetic and for sending.
        stored_bytes: Bytes that one instance takes in the shards; 0 without a dataset.
        instances_per_pass: Instances of the whole mixture that are read during one pass over its
            main dataset; 0 without a dataset.
        passes: Number of passes of the main dataset; 0 without a dataset.
    """

    phase: Phase
    lengths: Lengths
    flops: float
    micro_batches: int
    traffic: Traffic
    step: StepTime
    stored_bytes: float = 0.0
    instances_per_pass: int = 0
    passes: int = 0

    @property
    def instances(self) -> int:
        """Number of instances that the phase trains on."""
        return self.phase.steps * self.phase.global_batch

    @property
    def tokens(self) -> float:
        """Number of tokens that the phase trains on."""
        return self.instances * self.lengths.tokens

    @property
    def seconds(self) -> float:
        """A lower bound of the seconds that the phase takes."""
        return self.phase.steps * self.step.seconds


def plan_phases(settings: PlanSettings, config: BertConfig, mixture: Mixture) -> list[PhasePlan]:
    """Estimates the cost of every phase.

    If the settings ask for epochs, the phases' steps are first scaled so that together they make
    that many epochs.
    """
    pass_sizes = [
        instances_per_pass(mixture, phase.seq_len) for phase in settings.phases if mixture
    ]
    longer = lengthen_phases(settings, pass_sizes)
    return [plan_phase(phase, config, mixture, settings) for phase in longer]


def plan_phase(
    phase: Phase, config: BertConfig, mixture: Mixture, settings: PlanSettings
) -> PhasePlan:
    """Estimates the cost of one phase.

    The sizes of instances come from the main dataset: its totals and its first block. Without a
    dataset all instances have the full length.

    Args:
        phase: Settings of the phase, with its final number of steps.
        config: The model.
        mixture: The datasets; empty without one.
        settings: Settings of the run.
    """
    masked = phase.seq_len * Case.masked_share
    lengths = Lengths(phase.seq_len, phase.seq_len**2, masked)
    known = dict[str, Any]()
    if mixture:
        dataset = main_of(mixture)[0].dataset
        shards = dataset.shards("train", phase.seq_len, 0)
        stored = sum(each.num_bytes for each in shards) / sum(each.instances for each in shards)
        known = {
            "stored_bytes": stored,
            "instances_per_pass": instances_per_pass(mixture, phase.seq_len),
            "passes": dataset.num_passes("train", phase.seq_len),
        }
        lengths = measure_lengths(read_block(dataset, shards[0], 0))
    if config.is_causal:
        lengths = replace(lengths, masked=lengths.tokens - 1)
    elif settings.mask_shares:
        lengths = replace(lengths, masked=lengths.tokens * sum(settings.mask_shares) / 2)
    flops = training_flops(config, lengths)
    micro_batches = count_micro_batches(phase, lengths, settings)
    return PhasePlan(
        phase,
        lengths,
        flops,
        micro_batches,
        traffic=traffic_of(settings, config, micro_batches),
        step=time_phase_step(phase, config, lengths, settings),
        **known,
    )


def count_micro_batches(phase: Phase, lengths: Lengths, settings: PlanSettings) -> int:
    """Returns the number of micro-batches of a rank in a step.

    It is the number of tokens of the rank's share divided by `micro_tokens`, rounded up. A run may
    need more, because an instance is never cut in two.
    """
    tokens = phase.global_batch * lengths.tokens / settings.world_size
    return math.ceil(tokens / settings.micro_tokens)


def time_phase_step(
    phase: Phase, config: BertConfig, lengths: Lengths, settings: PlanSettings
) -> StepTime:
    """Returns a lower bound of the seconds of a step of a phase.

    Args:
        phase: The phase.
        config: The model.
        lengths: Lengths of one instance.
        settings: Settings of the run, with the number of ranks and their links.
    """
    micro_batches = count_micro_batches(phase, lengths, settings)
    recomputes = settings.activation_checkpointing
    operations = training_flops(config, lengths) * (_RECOMPUTED if recomputes else 1.0)
    of_rank = phase.global_batch / settings.world_size * operations
    traffic = traffic_of(settings, config, micro_batches)
    computing = of_rank / (settings.tflops * 1e12 * MFU)
    updating = update_seconds(settings, config)
    return time_step(traffic, wire_of(settings), computing, micro_batches, recomputes, updating)


def update_seconds(settings: PlanSettings, config: BertConfig) -> float:
    """Returns a lower bound of the seconds in which Muon orthogonalises a rank's matrices.

    It is 0 with any other optimizer. The products are taken to reach the same share of the peak
    rate as those of training. A GPU without bf16 counts with its rate in fp32.
    """
    if settings.optimizer.name != "muon":
        return 0.0
    gpu = GPUS[settings.gpu]
    known = gpu.peak_tflops(settings.optimizer.muon_precision) or gpu.fp32_tflops
    tflops = settings.peak_tflops or known
    return _muon_costs(settings, config).flops / (tflops * 1e12 * MFU)


def _muon_costs(settings: PlanSettings, config: BertConfig) -> MuonCosts:
    """Returns what Muon adds to a step on the rank, or the link, where it adds most."""
    bucket = settings.bucket_size or BUCKET_ELEMENTS
    return count_muon_costs(
        config, settings.zero_stage, settings.world_size, bucket, settings.node_size
    )


def traffic_of(settings: PlanSettings, config: BertConfig, micro_batches: int) -> Traffic:
    """Returns what a rank sends in a step that has `micro_batches` micro-batches on each rank."""
    traffic = count_traffic(
        config,
        settings.zero_stage,
        settings.choice.precision,
        settings.world_size,
        micro_batches,
        by_gloo=settings.gpu == "cpu",
        bucket_size=settings.bucket_size,
    )
    if settings.optimizer.name == "muon":
        costs = _muon_costs(settings, config)
        traffic = add_exchanges(traffic, costs, settings.optimizer.muon_precision)
    return traffic


def wire_of(settings: PlanSettings) -> Wire:
    """Returns the ring of the run's ranks.

    Raises:
        ValueError: There is no such link, or the ranks do not fill their nodes.
    """
    gpu = GPUS[settings.gpu]
    return join_ranks(settings.link, settings.gpu, gpu, settings.world_size, settings.node_size)


def find_used_batch(
    phase: Phase, config: BertConfig, lengths: Lengths, settings: PlanSettings
) -> int | None:
    """Returns the global batch from which on the ranks are busy.

    They are busy if they wait for the wire during less than a tenth of a step. A larger batch can
    wait more than a smaller one: if it needs one more micro-batch, each micro-batch is smaller, and
    so is the last backward pass, behind which gradients travel. Of all batches with the same number
    of micro-batches, the smallest one waits most.

    Args:
        phase: The phase, whose own global_batch does not matter.
        config: The model.
        lengths: Lengths of one instance.
        settings: Settings of the run.

    Returns:
        The smallest batch with which, as with all larger ones, the ranks are busy: instances of a
        step over all ranks, a multiple of their number. None if batches of up to `_LARGEST_BATCH`
        instances are too small.
    """

    def with_instances(instances_per_rank: int) -> Phase:
        return replace(phase, global_batch=instances_per_rank * settings.world_size)

    def is_busy(instances_per_rank: int) -> bool:
        batch = with_instances(instances_per_rank)
        return time_phase_step(batch, config, lengths, settings).waiting_share < _WAITING_SHARE

    def stays_busy(instances_per_rank: int) -> bool:
        full = count_micro_batches(with_instances(instances_per_rank), lengths, settings)
        most_instances = int(full * settings.micro_tokens / lengths.tokens)
        return is_busy(instances_per_rank) and is_busy(most_instances + 1)

    most = 1
    while not stays_busy(most):
        most *= 2
        if most * settings.world_size > _LARGEST_BATCH:
            return None
    tried = range(most // 2 + 1, most + 1)
    return settings.world_size * tried[bisect.bisect_left(tried, True, key=stays_busy)]


def measure_lengths(block: Block) -> Lengths:
    """Returns the means of lengths over a block's instances.

    These instances are a random sample of their bucket, which is a random sample of the documents.
    """
    tokens_B = np.diff(block.offsets).astype(np.float64)
    masked = block.num_masked / block.num_instances
    return Lengths(float(tokens_B.mean()), float(np.square(tokens_B).mean()), masked)


def memory_case(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan], zero_stage: int
) -> Case:
    """Returns the sizes for which a run's memory is computed.

    Each of them is the largest that some phase has, so that the result bounds all phases.

    Args:
        settings: Settings of the run.
        config: The model.
        phases: The estimates of all phases.
        zero_stage: The ZeRO stage to assume, 0 to 3.
    """
    of_steps = [each.phase.global_batch * each.lengths.tokens for each in phases]
    tokens = max(of_steps) / settings.world_size
    return Case(
        config=config,
        ranks=settings.world_size,
        zero_stage=zero_stage,
        optimizer=settings.optimizer.name,
        muon_precision=settings.optimizer.muon_precision,
        precision=settings.choice.precision,
        micro_tokens=min(settings.micro_tokens, math.ceil(tokens)),
        seq_len=max(each.phase.seq_len for each in phases),
        micro_batches=max(each.micro_batches for each in phases),
        recomputes=settings.activation_checkpointing,
        is_compiled=settings.choice.is_compiled and zero_stage != 3,
        is_cpu=settings.gpu == "cpu",
        masked_share=max(settings.mask_shares or [Case.masked_share]),
        bucket_size=settings.bucket_size,
    )


def checkpoint_bytes(parameters: int, precision: str) -> int:
    """Returns the bytes of a checkpoint, whatever the optimizer is.

    For each parameter it holds the model's weight, an fp32 weight and the two running means of the
    optimizer.

    Args:
        parameters: The number of parameters of the model.
        precision: The precision of the run, "bf16" or "fp32".
    """
    return ((2 if precision == "bf16" else 4) + 12) * parameters


def describe_plan(settings: PlanSettings) -> Iterator[str]:
    """Yields the plan as lines of text for people.

    Raises:
        ValueError: Settings do not fit each other or the dataset.
    """
    settings = resolve(settings)
    options = parse_storage_options(settings.storage_options)
    mixture = open_mixture(settings.data, options) if settings.data else ()
    main, share = main_of(mixture) if mixture else (None, 1.0)
    config = check_mixture(settings, mixture, settings.world_size)
    phases = plan_phases(settings, config, mixture)
    size = num_parameters(config)
    ranks = f"{settings.world_size} x {settings.gpu}"
    compiled = ", compiled" if settings.choice.is_compiled else ""
    precision = f"{settings.choice.precision}{compiled}"
    yield f"{settings.model.preset}: {size:,} parameters; {ranks}, {precision}"
    if main and len(mixture) > 1:
        yield f"lengths, sizes and epochs are those of {main.name}, {share:.0%} of the mixture"
    yield f"masking: {settings.masking}"
    if main is None:
        yield "no --data: every instance counts as full, with the most masks there can be"
    yield from _describe_time(settings, phases)
    yield from _describe_wire(settings, config, phases)
    yield from _describe_hours(settings, config, mixture)
    yield from _describe_memory(settings, config, phases)
    gigabytes = checkpoint_bytes(size, settings.choice.precision) / 1e9
    kept = settings.checkpoint.keep
    yield f"checkpoints: {gigabytes:.2f} GB each, {kept or 'all'} kept"
    yield from _describe_reading(settings, phases)


def _describe_time(settings: PlanSettings, phases: Sequence[PhasePlan]) -> Iterator[str]:
    """Yields a table of the phases, and the hours of the whole run."""
    yield "phase  length      steps      instances           tokens   epochs  PFLOP/step      hours"
    for number, each in enumerate(phases, start=1):
        pass_size = each.instances_per_pass
        epochs_column = f"{each.instances / pass_size:8.1f}" if pass_size else "       ?"
        petaflops_per_step = each.phase.global_batch * each.flops / 1e15
        yield (
            f"{number:5}  {each.phase.seq_len:6}  {each.phase.steps:9,}  {each.instances:13,}"
            f"  {each.tokens:15,.0f}  {epochs_column}"
            f"  {petaflops_per_step:10,.3f}  {_hours(each.seconds):>9}"
        )
    epochs = settings.epochs
    if epochs is not None:
        steps = " ".join(str(each.phase.steps) for each in phases)
        flags = f"pretrain --epochs {epochs:g}, or --steps {steps}"
        yield f"steps are those of {epochs:g} epochs: {flags}"
    hours = settings.budget_hours
    if hours is not None:
        yield f"steps are shares of the budget of {hours:g} hours, which decides how many are made"
    seconds = sum(each.seconds for each in phases)
    tokens = sum(each.tokens for each in phases)
    yield (
        f"time: at least {_hours(seconds)} hours, {_hours(seconds * settings.world_size)} GPU"
        f" hours; {tokens:,.0f} tokens, {tokens / seconds:,.0f} a second"
    )
    rate = f"{settings.tflops:,g} TFLOP/s a GPU in {settings.choice.precision}"
    yield f"      at {MFU:.0%} of {rate}, as one H200 in bf16 with 131,072 tokens a step;"
    yield "      with fewer tokens a GPU is slower; checkpoints and validation are not counted"


def _describe_wire(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan]
) -> Iterator[str]:
    """Yields lines about communication; none if there is a single rank.

    They name the links, and say for each phase what a rank sends in a step and how long the step
    computes, sends and waits. If a phase waits for a tenth of a step or more, a line names a global
    batch with which it waits less.
    """
    if settings.world_size == 1:
        return
    yield f"wire: {wire_of(settings).description}"
    yield "phase  micro-batches  GB sent  ms computing  ms on the wire  ms a step  waiting  limit"
    for number, each in enumerate(phases, start=1):
        step = each.step
        limit = "the wire" if step.waiting > step.computing else f"the {settings.gpu}"
        yield (
            f"{number:5}  {each.micro_batches:13,}  {each.traffic.total_bytes / 1e9:7.3f}"
            f"  {_milliseconds(step.computing):>12}  {_milliseconds(step.wire):>14}"
            f"  {_milliseconds(step.seconds):>9}  {step.waiting_share:7.0%}  {limit}"
        )
    yield f"  {_describe_bytes(settings, num_parameters(config), phases[0].traffic)}"
    for number, each in enumerate(phases, start=1):
        if each.step.waiting_share >= _WAITING_SHARE:
            yield f"  phase {number} waits less {_describe_batch(settings, config, each)}"


def _describe_bytes(settings: PlanSettings, num_trained: int, traffic: Traffic) -> str:
    """Returns a line that says how many bytes a rank sends for each parameter in phase 1, and when.

    Args:
        settings: Settings of the run.
        num_trained: Number of parameters.
        traffic: What a rank sends in a step of phase 1.
    """
    ranks = settings.world_size
    sent = num_trained * (ranks - 1) / ranks
    gradients = f"{traffic.gradient_bytes / sent:g} bytes a parameter of gradients"
    weights = f"{traffic.weight_bytes / sent:g} of weights"
    when = ""
    if traffic.exchanged_bytes:
        weights += f" and at most {traffic.exchanged_bytes / sent:.2g} of split matrices"
    if traffic.overlaps:
        when = ", gradients while the last backward pass computes"
        if traffic.weight_bytes:
            when += ", weights while the first forward pass does"
    return f"sent by a rank in phase 1: {gradients} and {weights}, times {ranks - 1}/{ranks}{when}"


def _describe_batch(settings: PlanSettings, config: BertConfig, plan: PhasePlan) -> str:
    """Returns advice for a phase whose ranks wait long for communication.

    It names the global batch from which on ranks wait for less than a tenth of each step. If no
    batch is large enough, it says what else helps.

    Returns:
        The end of a line that begins with "phase 1 waits less", such as "than 10% of a step from a
        global_batch of 4,096 on (it is 256), in 8 micro-batch(es) a rank".
    """
    found = find_used_batch(plan.phase, config, plan.lengths, settings)
    share = f"{_WAITING_SHARE:.0%}"
    if found is None:
        return f"than {share} with no batch: take fewer ranks, a faster link or zero_stage 1"
    phase = replace(plan.phase, global_batch=found)
    micro_batches = count_micro_batches(phase, plan.lengths, settings)
    batch = f"from a global_batch of {found:,} on (it is {plan.phase.global_batch:,})"
    return f"than {share} of a step {batch}, in {micro_batches:,} micro-batch(es) a rank"


def _milliseconds(seconds: float) -> str:
    """Returns a duration as text in milliseconds, such as 1.23, 12.3 or 1,234."""
    return f"{1e3 * seconds:,.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f}"


def _describe_hours(settings: PlanSettings, config: BertConfig, mixture: Mixture) -> Iterator[str]:
    """Yields a table of the hours that the run takes; nothing unless `settings.compare` is given.

    It has a row for each number of ranks in `compare`, and a column for each link between nodes.
    """
    if not settings.compare:
        return
    links = [*([NVLINK] if GPUS[settings.gpu].peers == "NVLink" else []), *LINKS]
    if settings.link not in links:
        links.append(settings.link)
    yield f"hours by number of {settings.gpu} and link between nodes of {settings.node_size}:"
    yield f"  {'':6}" + "".join(f"  {link:>9}" for link in links)
    for ranks in settings.compare:
        row = f"  {ranks:6,}"
        for link in links:
            other = replace(settings, world_size=ranks, link=link)
            refuse_small_batches(other, ranks)
            seconds = sum(each.seconds for each in plan_phases(other, config, mixture))
            row += f"  {_hours(seconds):>9}"
        yield row


def _describe_memory(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan]
) -> Iterator[str]:
    """Yields a table of a rank's memory under each ZeRO stage that the run's settings allow.

    Two lines after the table say what the memory of the chosen stage consists of.
    """
    gpu = GPUS[settings.gpu]
    where = f"{settings.gpu} of {gpu.memory_gb} GB" if gpu.memory_gb else "a process's tensors"
    tokens = f"micro_tokens {settings.micro_tokens:,}"
    yield f"memory of the fullest rank, {where}, {settings.choice.precision}, {tokens}, in GB:"
    yield "  ZeRO    held  in a step    total"
    refused = {("bf16", 0), ("lamb", 3), ("muon", 3)}
    for stage in (0, 1, 2, 3):
        if {(settings.choice.precision, stage), (settings.optimizer.name, stage)} & refused:
            continue
        found = count_memory(memory_case(settings, config, phases, stage))
        held = sum(found.held.values()) / 1e9
        total = found.total / 1e9
        chosen = "  <- zero_stage" if stage == settings.zero_stage else ""
        yield f"  {stage:4} {held:7.2f} {total - held:10.2f} {total:8.2f}{chosen}"
    found = count_memory(memory_case(settings, config, phases, settings.zero_stage))
    yield f"  held: {_terms(found.held)}"
    yield f"  in a step, fullest in its {found.fullest}: {_terms(found.in_step)}"


def _terms(terms: Mapping[str, int]) -> str:
    """Returns bytes by name as text in gigabytes, such as "weights 0.44, moments 0.88"."""
    return ", ".join(f"{name} {size / 1e9:.2f}" for name, size in terms.items())


def _describe_reading(settings: PlanSettings, phases: Sequence[PhasePlan]) -> Iterator[str]:
    """Yields a line for each phase about the rate at which all ranks read shards.

    A warning follows if the phase does not need all passes of the dataset, or reads them more than
    once. Without a dataset there are no lines.
    """
    for number, each in enumerate(phases, start=1):
        if not each.stored_bytes:
            continue
        length = each.phase.seq_len
        passes = each.passes
        needed = -(-each.instances // each.instances_per_pass)
        rate = each.instances / each.seconds * each.stored_bytes / 1e6
        yield (
            f"reading L{length}: {rate:,.1f} MB/s by all ranks, {rate / settings.world_size:,.2f}"
            f" MB/s each; {each.stored_bytes:,.0f} bytes an instance"
        )
        if needed < passes:
            more = f"{needed} of the {passes} passes of L{length}; more are not needed"
            yield f"warning: phase {number} reads {more}"
        if needed > passes:
            times = f"{needed / passes:.1f} times over"
            yield f"warning: phase {number} reads the {passes} pass(es) of L{length} {times}"


def _hours(seconds: float) -> str:
    """Returns a duration as text in hours, such as 1.23, 12.3 or 1,234."""
    hours = seconds / 3600
    return f"{hours:,.{2 if hours < 10 else 1 if hours < 100 else 0}f}"
