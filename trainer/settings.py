"""Settings of a pretraining run: every default, meaning and unit in one place. Imports the stdlib and the schedule.

Files in configs/pretrain state what differs from these defaults, and flags what differs from the file.
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.optim.schedule import Schedule
from trainer.safety_settings import CheckpointSettings, SafetySettings


@dataclass(frozen=True)
class ModelSettings:
    """Which BERT.

    Attributes:
        preset: A released size: tiny, mini, small, medium, base or large.
        overrides: Fields of BertConfig that differ from the preset's, such as {"hidden_dropout": 0.0}. The
            vocabulary's size is the dataset's and cannot be set.
    """

    preset: str = "base"
    overrides: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW or LAMB. Weight decay applies to matrices, not to biases and LayerNorm.

    Attributes:
        name: adamw, or lamb for batches of many thousands: its steps are scaled to the norm of each tensor.
        beta1: Decay rate of the running mean of gradients.
        beta2: Decay rate of the running mean of their squares.
        eps: Added to the root of the second mean; 1e-6 as in google-research/bert.
        weight_decay: Decoupled: weights shrink by learning rate * weight_decay a step.
        bias_correction: Whether both means are corrected for their start at 0. google-research/bert does not;
            torch.optim.AdamW does.
        max_grad_norm: Largest global L2 norm of the gradient; 0 turns clipping off.
    """

    name: Literal["adamw", "lamb"] = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one sequence length; its stream of instances starts at the beginning.

    Attributes:
        seq_len: Longest instance in tokens; the dataset must hold this length.
        global_batch: Instances of one optimizer step, over all ranks.
        steps: Optimizer steps.
        peak_lr: Learning rate after the warm-up.
        warmup_fraction: Share of the steps with linear growth from 0 to peak_lr.
        warmup_steps: The same as a number of steps; give one of the two.
        end_lr: Learning rate reached at the end of the decay.
        decay_power: Exponent of the polynomial decay: 1 is linear, 0 keeps peak_lr.
        optimizer_state: Whether the optimizer's running means carry over from the phase before or start at zero.
    """

    seq_len: int
    global_batch: int
    steps: int
    peak_lr: float
    warmup_fraction: float | None = None
    warmup_steps: int | None = None
    end_lr: float = 0.0
    decay_power: float = 1.0
    optimizer_state: Literal["keep", "reset"] = "keep"

    def __post_init__(self) -> None:
        for name in ("seq_len", "global_batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a phase is {getattr(self, name)}; it must be at least 1")
        if self.warmup_fraction is not None and self.warmup_steps is not None:
            raise ValueError("a phase has both warmup_fraction and warmup_steps; give one of them")
        if not 0 <= self.num_warmup_steps <= self.steps:
            raise ValueError(f"a phase warms up for {self.num_warmup_steps} of its {self.steps} steps")
        if self.peak_lr <= 0 or not 0 <= self.end_lr <= self.peak_lr:
            raise ValueError(f"peak_lr {self.peak_lr} must be above 0 and end_lr {self.end_lr} in 0 to peak_lr")

    @property
    def num_warmup_steps(self) -> int:
        """Warm-up in steps, rounded to the nearest."""
        return self.warmup_steps or round((self.warmup_fraction or 0.0) * self.steps)

    @property
    def schedule(self) -> Schedule:
        """The learning rate of each step of the phase."""
        return Schedule(self.steps, self.num_warmup_steps, self.peak_lr, self.end_lr, self.decay_power)


@dataclass(frozen=True)
class ValidationSettings:
    """When and on what the validation loss is measured.

    Attributes:
        interval: Optimizer steps between two measurements; 0 measures at the end of each phase only.
        num_instances: How many instances of the validation split, from its first on; 0 takes all.
    """

    interval: int = 1_000
    num_instances: int = 10_000


@dataclass(frozen=True)
class PretrainSettings:
    """Pretrains BERT on datasets made by `python -m pipeline build`. The same command again continues the run.

    Attributes:
        data: The dataset, a folder or an fsspec URL such as s3://bucket/dataset, which vocabulary and special tokens
            are read from. Or several, `wiki=s3://bucket/wiki:3 books:1`: [NAME=]URL[:WEIGHT] each, where weights are
            shares of the instances.
        output: The run's folder: settings, metrics and checkpoints.
        phases: What is trained in which order, a list of phases: 128 tokens and then 512, for example.
        steps: Optimizer steps of each phase, in place of the phases' own `steps`.
        model: Which BERT.
        optimizer: How weights are updated.
        validation: When and on what the validation loss is measured.
        checkpoint: When the run is saved.
        safety: What is done about bad gradients, hung ranks and corrupted memory.
        precision: Of weights and activations in forward and backward passes, fp32 or bf16. Gradients are summed,
            and weights updated, in fp32 either way.
        zero_stage: What DeepSpeed partitions over ranks: 0 nothing, 1 the optimizer's state, 2 gradients as well.
        deepspeed: JSON file with further choices for DeepSpeed; see configs/deepspeed.
        micro_tokens: Most real tokens of one forward pass on one rank. Bounds memory; results do not depend on it.
        seed: Of weights, dropout and the order of instances.
        skip: Stream positions never to train on, `PHASE:START-STOP` each, such as 0:51200-51456: from START up to
            before STOP. For bad data: go back to a checkpoint before it, then continue with this.
        follow: Also take a dataset whose build is still running: begin when its first pass is there, wait for others.
        follow_limit_minutes: Without a new file of the dataset, until waiting for the build ends with an error.
        storage_options: Options of the filesystem of the data and of checkpoint.url as JSON or @FILE, besides its
            environment variables. Never written into the run's folder.
        cache_dir: Folder on a disk of each machine that keeps what was read of the data, for all its ranks and later
            epochs; none where it is left out.
        cache_bytes: What that folder may hold; what was used longest ago makes room.
        tensorboard: Whether the curves also go to tensorboard/ in the run's folder.
        wandb: Weights & Biases project that the curves also go to; needs the package wandb.
        profile: Optimizer steps to look into, such as steps=20..25: a trace and a table of the largest operations of
            rank 0 go to profile/ in the run's folder.
        peak_tflops: TFLOP/s of one rank's device, which MFU is a share of; without it those of the GPU's data sheet
            (dense bf16). A CPU has no MFU without it.
    """

    data: list[str]
    output: str
    phases: list[Phase]
    steps: list[int] = field(default_factory=list)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    safety: SafetySettings = field(default_factory=SafetySettings)
    precision: Literal["fp32", "bf16"] = "fp32"
    zero_stage: Literal[0, 1, 2] = 1
    deepspeed: str | None = None
    micro_tokens: int = 16_384
    seed: int = 0
    skip: list[str] = field(default_factory=list)
    follow: bool = False
    follow_limit_minutes: float = 60.0
    storage_options: str | None = None
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    tensorboard: bool = True
    wandb: str | None = None
    profile: str | None = None
    peak_tflops: float | None = None

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(phase.steps for phase in self.phases)

    def skipped(self, phase: int) -> list[tuple[int, int]]:
        """Stretches of positions of one phase's stream to leave out.

        Raises:
            ValueError: An entry of `skip` is not PHASE:START-STOP.
        """
        matches = {entry: re.fullmatch(r"(\d+):(\d+)-(\d+)", entry) for entry in self.skip}
        for entry, match in matches.items():
            if match is None or int(match[1]) >= len(self.phases) or int(match[2]) >= int(match[3]):
                raise ValueError(f"skip: {entry!r} is not PHASE:START-STOP with a phase below {len(self.phases)}")
        rows = [tuple(map(int, match.groups())) for match in matches.values() if match]
        return [(start, stop) for index, start, stop in rows if index == phase]


# Settings that a continued run may change: they move work and files around, not what is learned.
# The data and what was skipped are checked by content, in the run's folder and in the stream's state.
FREE_ON_RESUME = (
    "data", "output", "validation", "checkpoint", "safety", "zero_stage", "deepspeed", "micro_tokens", "skip", "follow",
    "follow_limit_minutes", "cache_dir", "cache_bytes", "tensorboard", "wandb", "profile", "peak_tflops",
)  # fmt: skip


def resolve(settings: PretrainSettings) -> PretrainSettings:
    """The settings with `steps` written into the phases and everything that can be checked alone checked.

    Raises:
        ValueError: Numbers that do not fit each other.
    """
    if not settings.phases:
        raise ValueError("phases is empty; give at least one phase (see configs/pretrain)")
    phases = settings.phases
    if settings.steps:
        if len(settings.steps) != len(phases):
            raise ValueError(f"--steps has {len(settings.steps)} numbers for {len(phases)} phases; give one for each")
        phases = [dataclasses.replace(phase, steps=steps) for phase, steps in zip(phases, settings.steps, strict=True)]
    longest = max(phase.seq_len for phase in phases)
    if settings.micro_tokens < longest:
        raise ValueError(f"micro_tokens {settings.micro_tokens} cannot hold one instance of {longest} tokens")
    settings.skipped(0)
    for name in ("interval", "num_instances"):
        if getattr(settings.validation, name) < 0:
            raise ValueError(f"validation.{name} is {getattr(settings.validation, name)}; it must be at least 0")
    saving = settings.checkpoint
    if min(saving.interval, saving.keep, saving.keep_every) < 0:
        raise ValueError(f"checkpoint.interval, keep and keep_every must be at least 0, got {saving}")
    return dataclasses.replace(settings, phases=phases, steps=[])


def changes(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Settings, as plain values, that differ between two runs and may not: (key, old value, new value)."""
    for key in sorted({*old, *new}):
        if not prefix and key in FREE_ON_RESUME:
            continue
        yield from _changes_of_value(f"{prefix}{key}", old.get(key), new.get(key))


def _changes_of_value(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from changes(old, new, f"{key}.")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes_of_value(f"{key}.{index}", *pair)
    elif old != new:
        yield key, old, new
