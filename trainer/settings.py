"""Settings of a pretraining run: every default, meaning and unit in one place."""

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trainer.model.config import BertConfig, ModelSettings, preset
from trainer.optim.settings import DecayForm, OptimizerSettings, Schedule, WarmupForm

OF_PHASES = ("steps", "global_batch", "peak_lr", "warmup_fraction", "warmup_steps")
"""Fields of a phase that PretrainSettings can give for all phases, or for each."""


@dataclass(frozen=True)
class Phase:
    """A part of the training with instances of one length; it continues the previous phase.

    Attributes:
        seq_len: Sequence length in tokens of the longest instance. The dataset must hold this
            length.
        global_batch: Instances of one optimizer step, over all ranks.
        steps: How many optimizer steps the phase has.
        peak_lr: The learning rate after the warm-up.
        warmup_fraction: Share of the steps in which the learning rate grows from 0 to peak_lr.
        warmup_steps: Steps in which the learning rate grows, in place of warmup_fraction.
        warmup_form: How the learning rate grows: linear; or log, the default of DeepSpeed's
            WarmupLR.
        start_lr: The learning rate of the first step of a warm-up.
        end_lr: The learning rate at the end of the decay.
        decay_form: How the learning rate falls: polynomial, or cosine as in DeepSpeed's
            WarmupCosineLR.
        decay_power: Exponent of the polynomial decay: 1 is linear, 0 keeps peak_lr.
        decay_from: Where the decay begins: at the end of the warmup, as in Hugging Face's
            schedules, or at the start of the phase, as in google-research/bert.
        optimizer_state: What becomes of the moments of the previous phase: keep, reset, or
            zero_step, which keeps them and counts updates anew, as NVIDIA does.
    """

    seq_len: int
    global_batch: int
    steps: int
    peak_lr: float
    warmup_fraction: float | None = None
    warmup_steps: int | None = None
    warmup_form: WarmupForm = "linear"
    start_lr: float = 0.0
    end_lr: float = 0.0
    decay_form: DecayForm = "polynomial"
    decay_power: float = 1.0
    decay_from: Literal["warmup", "start"] = "warmup"
    optimizer_state: Literal["keep", "reset", "zero_step"] = "keep"

    def __post_init__(self) -> None:
        for name in ("seq_len", "global_batch", "steps"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} of a phase is {value}; it must be at least 1")
        if self.warmup_fraction is not None and self.warmup_steps is not None:
            raise ValueError("a phase has both warmup_fraction and warmup_steps; give one of them")
        if not 0 <= self.num_warmup_steps <= self.steps:
            found = f"warmup_steps is {self.num_warmup_steps} and a phase has {self.steps} steps"
            cure = f"give warmup_steps of 0 to {self.steps}, or warmup_fraction of 0 to 1"
            raise ValueError(f"{found}; {cure}")
        if self.peak_lr <= 0:
            raise ValueError(f"peak_lr {self.peak_lr} must be above 0")
        for name in ("start_lr", "end_lr"):
            if not 0 <= (rate := getattr(self, name)) <= self.peak_lr:
                raise ValueError(f"{name} {rate} must be in 0 to peak_lr, which is {self.peak_lr}")
        if self.decay_form == "cosine" and self.decay_power != 1.0:
            found = f"decay_power is {self.decay_power}, of a polynomial, and decay_form is cosine"
            raise ValueError(f"{found}; leave one of them out")

    @property
    def num_warmup_steps(self) -> int:
        """Warm-up in steps, rounded to the nearest."""
        return self.warmup_steps or round((self.warmup_fraction or 0.0) * self.steps)

    @property
    def schedule(self) -> Schedule:
        """The learning rate of each step of the phase."""
        return Schedule(
            steps=self.steps,
            warmup_steps=self.num_warmup_steps,
            peak_lr=self.peak_lr,
            end_lr=self.end_lr,
            power=self.decay_power,
            decay_start=0 if self.decay_from == "start" else None,
            start_lr=self.start_lr,
            warmup_form=self.warmup_form,
            decay_form=self.decay_form,
        )


@dataclass(frozen=True)
class ValidationSettings:
    """When and on what the model is measured while it trains.

    Attributes:
        interval: Optimizer steps between two measurements; 0 measures at the ends of phases only.
        num_instances: How many instances of the validation split are read; 0 takes all.
        stop_at_mlm_accuracy: A masked-LM accuracy that ends the run when a measurement reaches it,
            0.72 in MLPerf.
        pairs: A file of minimal pairs such as BLiMP's, or a folder or glob of such files, on which
            the model is measured as well (docs/evaluating.md).
        pairs_limit: The most pairs of one paradigm; the first ones are taken, 0 takes all. With all
            of BLiMP, every measurement of BERT-mini takes half an hour on one core.
    """

    interval: int = 1_000
    num_instances: int = 10_000
    stop_at_mlm_accuracy: float | None = None
    pairs: str | None = None
    pairs_limit: int = 0

    def __post_init__(self) -> None:
        for name in ("interval", "num_instances", "pairs_limit"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"validation.{name} is {value}; it must be at least 0")


@dataclass(frozen=True)
class CheckpointSettings:
    """When the run is saved.

    Attributes:
        interval: Optimizer steps between two checkpoints; 0 saves at the ends of phases only.
        keep: How many of the newest checkpoints stay; 0 keeps all.
        url: Folder at an fsspec URL that checkpoints of this run alone are uploaded to. A run whose
            disk is lost continues from it; null keeps them in `output` only.
        skip_damaged: Whether the run goes back to the newest checkpoint that is whole. Otherwise a
            damaged one stops it.
    """

    interval: int = 1_000
    keep: int = 3
    url: str | None = None
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        for name in ("interval", "keep"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"checkpoint.{name} is {value}; it must be at least 0")


@dataclass(frozen=True)
class SafetySettings:
    """What is done about bad gradients, hung ranks and corrupted memory.

    Attributes:
        spike_factor: A step is not taken where its gradient norm is not finite or this many times
            the running median; 0 takes every finite one. Five such steps in a row send the run back
            to the checkpoint before them, without their instances.
        weights_interval: Steps between two comparisons of all ranks' weights, which find flipped
            bits; 1 finds most, at some 4 % of a small model's step; 0 never compares.
        watchdog_minutes: The longest time a step, a validation or a wait for a checkpoint may take.
            A first step may take three times as long. Then the job ends with the stacks of all
            ranks; 0 waits for ever.
    """

    spike_factor: float = 10.0
    weights_interval: int = 10
    watchdog_minutes: float = 30.0

    def __post_init__(self) -> None:
        if (factor := self.spike_factor) and factor <= 1:
            raise ValueError(f"safety.spike_factor is {factor}; it must be above 1, or 0 for none")
        for name in ("weights_interval", "watchdog_minutes"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"safety.{name} is {value}; it must be at least 0")


@dataclass(frozen=True)
class PretrainSettings:
    """Pretrains BERT on datasets made by `python -m pipeline build`.

    The same command again continues a run. The number of ranks, zero_stage and micro_tokens may
    then change.

    Data:
        data: The dataset, a folder or an fsspec URL. Several are mixed, `wiki=s3://bucket/wiki:3
            books:1`: each is [NAME=]URL[:WEIGHT], and weights are shares of the instances.
        follow: Whether to train while the dataset is still being built, as far as its passes are
            there.
        follow_limit_minutes: Minutes to wait for a new file of the dataset before the run stops.
        skip: Stream positions that are never trained on, as PHASE:START-STOP; 0:51200-51456 is in
            the first phase. If data are bad, go back to a checkpoint before them and continue with
            this.
        cache_dir: Folder on a disk of each machine, in which the data that were read are kept.
        cache_bytes: The most bytes in the cache folder. Files that were not used for longest are
            removed.
        storage_options: Options of the filesystem of the data and of checkpoint.url, as JSON or
            @FILE. Its environment variables count too. The run's folder does not hold them.

    Schedule:
        phases: The phases of the training in order, as a list in the --config file.
        steps: Optimizer steps in place of the phases' own, one number or one for each.
        global_batch: Instances of a step in place of the phases' own.
        peak_lr: Learning rates in place of the phases' own.
        warmup_fraction: Shares of the steps to warm up in, in place of the phases' own.
        warmup_steps: Steps to warm up in, in place of the phases' own.
        epochs: Passes over the data by all phases together, which share them in proportion to their
            steps. null trains for the steps themselves.
        budget_hours: Hours of training, which the phases share in proportion to their steps. The
            learning rate follows the time. null trains for the steps.
        seed: Random seed of new weights, of dropout and of the order of instances.

    Model:
        objective: What is learned: mlm+nsp as in BERT; mlm alone; or left-to-right, every token
            from those before it. A head that is not trained stays as it was.
        nsp_weight: Weight of NSP's loss in training, 1 in BERT; metrics hold the loss unweighted.
        masking: Which tokens are masked: static, those of the dataset; or, drawn anew at every
            reading, a share such as 0.15, one that moves along the run (0.3-0.15), or one that
            moves in 9,000 steps (0.3-0.15@9000).
        init_from: Weights to start from: a model of Hugging Face, a released Google checkpoint, an
            export, or a universal checkpoint of DeepSpeed. Sizes and vocabulary must be equal,
            except that the dataset's vocabulary may extend the model's (docs/training.md).
        continue_from: A run, or RUN@STEP, that this new run continues exactly. The phases of this
            run include the steps made there. Apart from the schedule, the settings of the training
            must be equal.
        model: Which BERT is trained.
        optimizer: How weights are updated.

    Machine:
        precision: The number format of weights and activations in forward and backward passes.
            Gradients are summed, and weights updated, in 32 bits in any case.
        zero_stage: What DeepSpeed partitions over ranks: 0 nothing, 1 the optimizer's state, 2
            gradients as well, 3 weights as well (adamw only).
        deepspeed: A ds_config.json for settings that no flag and no --config file gives.
        micro_tokens: The most real tokens of one forward pass on one rank. It bounds memory and
            changes no result.
        activation_checkpointing: Whether only each layer's input is kept, and the rest is computed
            again.
        compile: Whether torch.compile compiles the model around attention, once for all lengths. It
            does not work with zero_stage 3.

    Output:
        output: The run's folder, which holds settings, metrics and checkpoints.
        wandb: Weights & Biases project that the curves also go to. It needs the package wandb.
        peak_tflops: TFLOP/s of one rank's device, of which MFU is the share. null takes them from
            the device's data sheet.
        validation: When and on what the model is measured while it trains.
        checkpoint: When the run is saved.
        safety: What is done about bad gradients, hung ranks and corrupted memory.
    """

    data: list[str]
    output: str
    phases: list[Phase]
    steps: list[int] = field(default_factory=list)
    global_batch: list[int] = field(default_factory=list)
    peak_lr: list[float] = field(default_factory=list)
    warmup_fraction: list[float] = field(default_factory=list)
    warmup_steps: list[int] = field(default_factory=list)
    objective: Literal["mlm+nsp", "mlm", "left-to-right"] = "mlm+nsp"
    nsp_weight: float = 1.0
    masking: str = "static"
    init_from: str | None = None
    continue_from: str | None = None
    epochs: float | None = None
    budget_hours: float | None = None
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    safety: SafetySettings = field(default_factory=SafetySettings)
    precision: Literal["fp32", "bf16"] = "fp32"
    zero_stage: Literal[0, 1, 2, 3] = 1
    deepspeed: str | None = field(
        default=None, metadata={"fills": "trainer.engine.deepspeed_settings:settings_of_file"}
    )
    micro_tokens: int = 16_384
    activation_checkpointing: bool = False
    compile: bool = False
    seed: int = 0
    skip: list[str] = field(default_factory=list)
    follow: bool = False
    follow_limit_minutes: float = 60.0
    storage_options: str | None = None
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    wandb: str | None = None
    peak_tflops: float | None = None

    @property
    def num_steps(self) -> int | None:
        """Optimizer steps of the whole run; None where time decides."""
        return sum(phase.steps for phase in self.phases) if self.budget_hours is None else None

    def budget_seconds(self, phase: int) -> float | None:
        """A phase's share of the time budget; None where steps decide."""
        if self.budget_hours is None:
            return None
        share = self.phases[phase].steps / sum(each.steps for each in self.phases)
        return 3_600 * self.budget_hours * share

    @property
    def mask_shares(self) -> tuple[float, float] | None:
        """Returns the first and the last share of masked tokens, or None for static masks."""
        if self.masking == "static":
            return None
        first, last, _ = self._mask_line()
        return first, last

    @property
    def mask_steps(self) -> int:
        """Returns the steps that a moving share takes: the number after @, or all of the run."""
        return self._mask_line()[2] or sum(phase.steps for phase in self.phases)

    def _mask_line(self) -> tuple[float, float, int | None]:
        """Returns the first share, the last, and the steps between; None means the run's."""
        match = re.fullmatch(r"(0?\.\d+)(?:-(0?\.\d+)(?:@([1-9]\d*))?)?", self.masking)
        first, last = (float(match[1]), float(match[2] or match[1])) if match else (0.0, 0.0)
        if match is None or not 0 < min(first, last) <= max(first, last) <= 0.5:
            raise ValueError(
                f"masking is {self.masking!r}; give static, a share such as 0.15, or 0.3-0.15 for"
                " one that moves along the run, or along so many steps as 0.3-0.15@9000; shares are"
                " above 0 and at most 0.5"
            )
        return first, last, int(match[3]) if match[3] else None

    def mask_share(self, phase: int, step: int) -> float:
        """Returns the share of masked tokens at a step of a phase (docs/order.md).

        Args:
            phase: The number of the phase, from 0.
            step: The number of steps before it in the phase.
        """
        first, last = self.mask_shares or (0.0, 0.0)
        total = self.mask_steps
        done = min(sum(each.steps for each in self.phases[:phase]) + step, total)
        return first + (last - first) * done / total

    def model_config(self, vocab_size: int) -> BertConfig:
        """The model, with the dataset's vocabulary.

        Raises:
            ValueError: An override that is decided elsewhere, or sizes that do not fit each other.
        """
        deciders = {"vocab_size": "the dataset's vocabulary", "is_causal": "objective"}
        for name, decider in deciders.items():
            if name in self.model.overrides:
                raise ValueError(f"model.overrides sets {name}; {decider} decides it, leave it out")
        decided = {"vocab_size": vocab_size, "is_causal": self.objective == "left-to-right"}
        return preset(self.model.preset, **decided, **self.model.overrides)

    def phases_of(self, seq_len: int) -> list[int]:
        """Indices of the phases of one length, which go on in one stream."""
        return [index for index, phase in enumerate(self.phases) if phase.seq_len == seq_len]

    def skipped(self, *phases: int) -> list[tuple[int, int]]:
        """Positions to leave out of the stream of these phases, from START to before STOP."""
        found = []
        for entry in self.skip:
            match = re.fullmatch(r"(\d+):(\d+)-(\d+)", entry)
            index, start, stop = map(int, match.groups()) if match else (0, 0, 0)
            if index >= len(self.phases) or start >= stop:
                most = len(self.phases) - 1
                wanted = f"PHASE:START-STOP, with a PHASE from 0 to {most} and START below STOP"
                raise ValueError(f"skip: {entry!r} is not {wanted}")
            found += [(start, stop)] if index in phases else []
        return found


Settings = TypeVar("Settings", bound=PretrainSettings)


def resolve(settings: Settings) -> Settings:
    """The settings, checked, with all that is given for phases written into them.

    Raises:
        ValueError: Numbers that do not fit each other.
    """
    if not settings.phases:
        raise ValueError("phases is empty; give at least one phase (see configs/pretrain)")
    phases = [_change_phase(settings, index) for index in range(len(settings.phases))]
    longest = max(phase.seq_len for phase in phases)
    if (most := settings.micro_tokens) < longest:
        raise ValueError(f"micro_tokens {most} cannot hold one instance of {longest} tokens")
    settings.skipped()
    _check_training(settings)
    _check_epochs(settings)
    none_given: dict[str, Any] = {name: [] for name in OF_PHASES}
    return dataclasses.replace(settings, phases=phases, **none_given)


def _change_phase(settings: PretrainSettings, index: int) -> Phase:
    """A phase with what is given for all phases or for each of them."""
    changed: dict[str, Any] = {}
    for name in OF_PHASES:
        values, phases = getattr(settings, name), len(settings.phases)
        if (count := len(values)) not in (0, 1, phases):
            there = "there is 1 phase" if phases == 1 else f"there are {phases} phases"
            raise ValueError(
                f"--{name} has {count} values and {there}; give one for all, or {phases}"
            )
        if values:
            changed[name] = values[index if len(values) > 1 else 0]
    if changed.keys() & {"warmup_fraction", "warmup_steps"}:
        changed = {"warmup_fraction": None, "warmup_steps": None} | changed
    return dataclasses.replace(settings.phases[index], **changed)


def _check_epochs(settings: PretrainSettings) -> None:
    if settings.epochs is None:
        return
    if not 0 < settings.epochs < math.inf:
        raise ValueError(f"epochs is {settings.epochs}; give a number above 0")
    if not settings.data:
        raise ValueError("epochs are passes over a dataset; give --data, or --steps without epochs")
    if settings.steps or settings.budget_hours is not None:
        raise ValueError("epochs decides the steps; leave steps and budget_hours out")
    if settings.follow:
        raise ValueError("epochs are passes over a finished dataset; give --steps with follow")


def _check_training(settings: PretrainSettings) -> None:
    """Refuses combinations that would train something else than was asked."""
    if settings.zero_stage == 3 and (name := settings.optimizer.name) != "adamw":
        raise ValueError(
            f"optimizer {name} cannot run under zero_stage 3: its updates of whole tensors were"
            " held to one process on the partitions of ZeRO-1 and 2 only; use zero_stage 1 or 2, or"
            " optimizer adamw"
        )
    if settings.zero_stage == 3 and settings.compile:
        why = "whose hooks gather weights; use zero_stage 0 to 2"
        raise ValueError(f"compile does not work with zero_stage 3, {why}")
    if (hours := settings.budget_hours) is not None and hours <= 0:
        raise ValueError(f"budget_hours is {hours}; it must be above 0, or null to train by steps")
    others = [name for name in ("init_from", "budget_hours") if getattr(settings, name) is not None]
    if settings.continue_from is not None and others:
        raise ValueError(f"continue_from takes a run's weights and steps; leave {others[0]} out")
    if not (weight := settings.nsp_weight) > 0:
        raise ValueError(f"nsp_weight is {weight}, not above 0; objective mlm leaves NSP out")
    if (shares := settings.mask_shares) and settings.objective == "left-to-right":
        raise ValueError("objective left-to-right masks nothing; leave masking out")
    if shares and shares[0] != shares[1] and settings.budget_hours is not None:
        found = f"masking {settings.masking} moves along the steps"
        raise ValueError(f"{found}; budget_hours leaves their number open: give one share or steps")
    target = settings.validation.stop_at_mlm_accuracy
    if target is not None and not 0 < target <= 1:
        found = f"validation.stop_at_mlm_accuracy is {target}"
        raise ValueError(f"{found}; an accuracy is above 0 and at most 1")
