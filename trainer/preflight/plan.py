"""What a run will take (`python -m trainer plan`): tokens, epochs, hours, memory, bandwidth."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.storage.folder import parse_storage_options
from trainer.model.config import BertConfig
from trainer.model.flops import num_parameters
from trainer.order.source import open_mixture
from trainer.preflight.memory import count_memory
from trainer.preflight.phase_plan import (
    MFU,
    PhasePlan,
    checkpoint_bytes,
    memory_case,
    peak_tflops,
    plan_phases,
)
from trainer.preflight.settings import PlanSettings
from trainer.process.gpus import GPUS
from trainer.runs.epochs import main_of
from trainer.settings import resolve

_DEFAULT_VOCAB_SIZE = 30_522


def describe_plan(settings: PlanSettings) -> Iterator[str]:
    """The plan as lines for a person.

    Raises:
        ValueError: Settings that do not fit each other or the dataset.
    """
    settings = _check(settings)
    options = parse_storage_options(settings.storage_options)
    mixture = open_mixture(settings.data, options) if settings.data else ()
    main, share = main_of(mixture) if mixture else (None, 1.0)
    vocab_size = main.dataset.manifest.vocab_size if main else _DEFAULT_VOCAB_SIZE
    config = settings.model_config(vocab_size)
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
    yield from _describe_time(settings, phases)
    yield from _describe_memory(settings, config, phases)
    size, count = checkpoint_bytes(parameters, settings.precision), settings.checkpoint.keep
    yield f"checkpoints: {size / 1e9:.2f} GB each, {count or 'all'} kept"
    yield from _describe_reading(settings, phases)
    yield from (f"warning: {each}" for each in _warnings(settings, phases))


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
    epochs = (
        f"{each.instances / each.instances_a_pass:8.1f}" if each.instances_a_pass else "       ?"
    )
    tokens = each.instances * each.lengths.tokens
    step = each.phase.global_batch * each.flops / 1e15
    return (
        f"{index:5}  {each.phase.seq_len:6}  {each.phase.steps:9,}  {each.instances:13,}  {tokens:15,.0f}  {epochs}"
        f"  {step:10,.3f}  {_hours(each.seconds):>9}"
    )


def _describe_time(settings: PlanSettings, phases: list[PhasePlan]) -> Iterator[str]:
    """The least time of all phases."""
    seconds = sum(each.seconds for each in phases)
    tokens = sum(each.instances * each.lengths.tokens for each in phases)
    yield (
        f"time: at least {_hours(seconds)} hours, {_hours(seconds * settings.world_size)} GPU hours;"
        f" {tokens:,.0f} tokens, {tokens / seconds:,.0f} a second"
    )
    yield (
        f"      at {MFU:.0%} of {peak_tflops(settings):,g} TFLOP/s a GPU, and 3 us a kernel; no GPU has measured"
        " this yet; exchange between GPUs, updates, checkpoints, validation and starts come on top"
    )


def _describe_memory(
    settings: PlanSettings, config: BertConfig, phases: Sequence[PhasePlan]
) -> Iterator[str]:
    where = (
        "a process"
        if settings.gpu == "cpu"
        else f"{settings.gpu} of {GPUS[settings.gpu].memory_gb} GB"
    )
    tokens = f"micro_tokens {settings.micro_tokens:,}"
    yield f"memory of the fullest rank, {where}, {settings.precision}, {tokens}, in GB:"
    yield "  ZeRO    held  in a step  process    total"
    for stage in (0, 1, 2, 3):
        if (settings.precision, stage) == ("bf16", 0) or (settings.optimizer.name, stage) == (
            "lamb",
            3,
        ):
            continue  # refused by the trainer
        found = count_memory(memory_case(settings, config, phases, stage))
        held, process = sum(found.held.values()), sum(found.process.values())
        gigabytes = [each / 1e9 for each in (held, found.tensors - held, process, found.total)]
        row = "{:7.2f} {:10.2f} {:8.2f} {:8.2f}".format(*gigabytes)
        yield f"  {stage:4} {row}{'  <- zero_stage' if stage == settings.zero_stage else ''}"
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
            rate = each.instances / each.seconds * each.stored_bytes
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
        if each.launches > each.mathematics:
            tokens = each.phase.global_batch * each.lengths.tokens / settings.world_size
            yield (
                f"phase {index} is too small for this hardware: a GPU gets {tokens:,.0f} tokens a step, and waits for"
                f" kernels to start, {1e3 * each.launches:.2f} ms for {1e3 * each.mathematics:.2f} ms of mathematics;"
                " fewer GPUs, or a larger global_batch, lose little"
            )


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.{2 if hours < 10 else 1 if hours < 100 else 0}f}"
