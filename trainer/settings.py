"""Defines the settings of `python -m trainer pretrain`: their defaults, meanings and units."""

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trainer.model.config import BertConfig, ModelSettings, preset
from trainer.optim.settings import DecayForm, OptimizerSettings, Schedule, WarmupForm

OF_PHASES = ("steps", "global_batch", "peak_lr", "warmup_fraction", "warmup_steps")
"""Fields that `Phase` and `PretrainSettings` both have.

In `PretrainSettings` they have one value for all phases or one for each. On the command line,
`--steps 9000 1000` is shorter than flags such as `--phases.0.steps 9000`.
"""


@dataclass(frozen=True)
class Phase:
    """Settings of one phase: a part of a pretraining run with instances of one length.

    A phase continues with the weights of the previous one.

    Attributes:
        seq_len: The most tokens of an instance. The dataset must have instances of this length.
        global_batch: Instances of one optimizer step, over all ranks.
        steps: Number of optimizer steps of the phase.
        peak_lr: The learning rate after the warm-up.
        warmup_fraction: Share of the steps in which the learning rate grows to peak_lr.
        warmup_steps: Steps in which the learning rate grows, in place of warmup_fraction.
        warmup_form: The curve of the warm-up: linear; or log, the default of DeepSpeed's WarmupLR.
        start_lr: The learning rate of the first step of a warm-up.
        end_lr: The learning rate at the end of the decay.
        decay_form: The curve of the decay: polynomial, or cosine as in DeepSpeed's WarmupCosineLR.
        decay_power: Exponent of the polynomial decay: 1 is linear, 0 keeps peak_lr.
        decay_from: Where the decay begins: at the end of the warmup, as in Hugging Face's
            schedules, or at the start of the phase, as in google-research/bert.
        optimizer_state: What becomes of the optimizer's moments when the phase begins: keep goes on
            with them; reset begins without them; zero_step goes on with them, but counts updates
            from 0 again, as NVIDIA does.
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
            value = getattr(self, name)
            if value < 1:
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
            rate = getattr(self, name)
            if not 0 <= rate <= self.peak_lr:
                raise ValueError(f"{name} {rate} must be in 0 to peak_lr, which is {self.peak_lr}")
        if self.decay_form == "cosine" and self.decay_power != 1.0:
            found = f"decay_power is {self.decay_power}, of a polynomial, and decay_form is cosine"
            raise ValueError(f"{found}; leave one of them out")

    @property
    def num_warmup_steps(self) -> int:
        """Number of warm-up steps: warmup_steps, or warmup_fraction of the steps, rounded."""
        return self.warmup_steps or round((self.warmup_fraction or 0.0) * self.steps)

    @property
    def schedule(self) -> Schedule:
        """The schedule that gives the learning rate of each step of the phase."""
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
    """Settings of a pretraining run's measurements on validation instances and minimal pairs.

    Attributes:
        interval: Optimizer steps between two measurements; 0 measures at the ends of phases only.
        num_instances: Number of instances of the validation split that are read; 0 takes all.
        stop_at_mlm_accuracy: A masked-LM accuracy that ends the run when a measurement reaches it,
            0.72 in MLPerf.
        pairs: A file of minimal pairs such as BLiMP's, or a folder or glob of such files, on which
            the model is measured as well (docs/evaluating.md).
        pairs_limit: The most pairs that are read of each paradigm, from its first pair on; 0 reads
            all. With all of BLiMP, every measurement of BERT-mini takes half an hour on one core.
    """

    interval: int = 1_000
    num_instances: int = 10_000
    stop_at_mlm_accuracy: float | None = None
    pairs: str | None = None
    pairs_limit: int = 0

    def __post_init__(self) -> None:
        for name in ("interval", "num_instances", "pairs_limit"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"validation.{name} is {value}; it must be at least 0")


@dataclass(frozen=True)
class CheckpointSettings:
    """Settings of a pretraining run's checkpoints.

    Attributes:
        interval: Optimizer steps between two checkpoints; 0 saves at the ends of phases only.
        keep: Number of checkpoints that stay, the newest ones; 0 keeps all.
        url: Folder at an fsspec URL to which checkpoints are uploaded, and which no other run may
            use. If the disk of the run is lost, the run continues from there. null keeps
            checkpoints in `output` only.
        skip_damaged: Whether a damaged checkpoint is skipped, so that the run continues from the
            newest one that is whole. Otherwise a damaged checkpoint stops the run.
    """

    interval: int = 1_000
    keep: int = 3
    url: str | None = None
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        for name in ("interval", "keep"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"checkpoint.{name} is {value}; it must be at least 0")


@dataclass(frozen=True)
class SafetySettings:
    """Settings of a pretraining run's guards: bad gradients, hung ranks and corrupted memory.

    Attributes:
        spike_factor: The gradient norm that counts as a spike, as a multiple of the median of
            recent norms. A step with a norm of this size or more, or with one that is not finite,
            changes no weights. After five such steps in a row, the run goes back to the checkpoint
            before them and leaves out their instances. 0 accepts every finite norm.
        weights_interval: Steps between two comparisons of all ranks' weights, which find bits that
            memory has flipped. 1 finds most, and takes some 4 % of the time of a small model's
            step; 0 never compares.
        watchdog_minutes: The longest time that a step, a validation or a wait for a checkpoint may
            take; a first step may take three times as long. After that time the job ends, and
            writes the stacks of all ranks. 0 waits for ever.
    """

    spike_factor: float = 10.0
    weights_interval: int = 10
    watchdog_minutes: float = 30.0

    def __post_init__(self) -> None:
        factor = self.spike_factor
        if factor and factor <= 1:
            raise ValueError(f"safety.spike_factor is {factor}; it must be above 1, or 0 for none")
        for name in ("weights_interval", "watchdog_minutes"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"safety.{name} is {value}; it must be at least 0")


@dataclass(frozen=True)
class PretrainSettings:
    """Pretrains BERT on datasets made by `python -m pipeline build`.

    The same command again continues a run. The number of ranks, zero_stage and micro_tokens may
    then change.

    Data:
        data: The dataset, a folder or an fsspec URL. Several are mixed, `wiki=s3://bucket/wiki:3
            books:1`: each is [NAME=]URL[:WEIGHT], and weights are shares of the instances.
        follow: Whether to train while the dataset is still being built, on the passes that are
            complete so far.
        follow_limit_minutes: Minutes to wait for a new file of the dataset before the run stops.
        skip: Stream positions that are never trained on, as PHASE:START-STOP. For example,
            0:51200-51456 leaves out 256 positions of the first phase. If data are bad, go back to a
            checkpoint before them, and continue from there with this setting.
        leave_out: A file of document ids, one in hex digits per line. Instances that hold one of
            the documents are never trained on. The run's folder keeps the list.
        cache_dir: Folder on a disk of each machine, in which the data that were read are kept.
        cache_bytes: The most bytes in the cache folder. The least recently used files are removed.
        storage_options: Options of the filesystem of all URLs that the run reads or writes, as JSON
            or @FILE. The usual environment variables count too. The run's folder does not hold
            the options.

    Schedule:
        phases: The phases of the training in order, as a list in the --config file.
        steps: Optimizer steps that replace those of the phases: one number for all, or one for
            each.
        global_batch: Instances of one step that replace those of the phases, one number or one for
            each.
        peak_lr: Learning rates that replace those of the phases, one number or one for each.
        warmup_fraction: Shares of the steps in which the learning rate grows. They replace those of
            the phases, one number or one for each.
        warmup_steps: Numbers of warm-up steps that replace those of the phases, one number or one
            for each.
        epochs: Passes over the data by all phases together. The phases divide them in proportion to
            their steps. null trains for the steps themselves.
        budget_hours: Hours of training, in place of a number of steps. The phases divide the hours
            in proportion to their steps, and the learning rate follows the time. null trains for
            the steps.
        seed: Random seed of new weights, of dropout and of the order of instances.

    Model:
        objective: The task that is learned: mlm+nsp as in BERT; mlm alone; or left-to-right, which
            predicts every token from the tokens before it. A head that is not trained stays as it
            was.
        nsp_weight: Weight of NSP's loss in training, 1 in BERT; metrics hold the loss unweighted.
        masking: The choice of masked tokens. static takes those of the dataset. A share such as
            0.15 draws them anew whenever an instance is read. 0.3-0.15 moves the share in equal
            steps from 0.3 to 0.15 over the whole run, and 0.3-0.15@9000 over the first 9,000 steps.
        init_from: Weights to start from: a model of Hugging Face, a released Google checkpoint, an
            export, or a universal checkpoint of DeepSpeed. Sizes and vocabulary must be equal,
            except that the dataset's vocabulary may extend the model's (docs/training.md).
        continue_from: A run, or RUN@STEP, whose training this new run continues exactly. The steps
            of that run count as the first steps of this run's phases. Apart from the schedule, the
            settings of the training must be equal.
        model: The BERT that is trained: a released size, and what differs from it.
        optimizer: The optimizer that updates the weights.

    Machine:
        precision: The number format of weights and activations in forward and backward passes. null
            lets the device decide: bf16 on a GPU that has it, otherwise fp32. Gradients are summed,
            and weights updated, in 32 bits either way.
        zero_stage: The stage of ZeRO, with which DeepSpeed partitions the training over ranks: 0
            nothing, 1 the optimizer's state, 2 gradients as well, 3 weights as well (adamw only).
        deepspeed: A ds_config.json for settings that no flag and no --config file gives.
        micro_tokens: The most real tokens of one forward pass on one rank. It bounds memory. Global
            batches do not depend on it; the rounding of sums and the masks of dropout do.
        activation_checkpointing: Whether only each layer's input is kept for the backward pass,
            which then computes the other activations again. It saves memory and takes time.
        compile: Whether torch.compile compiles the model around attention, once for all lengths.
            null compiles in bf16 on a GPU. It does not work with zero_stage 3.

    Output:
        output: The run's folder, which holds settings, metrics and checkpoints.
        wandb: Weights & Biases project that the curves also go to. It needs the package wandb.
        peak_tflops: The peak TFLOP/s of one rank's device; MFU is the share of them that a run
            reaches. null takes them from the device's data sheet.
        validation: Measurements of the model while it trains.
        checkpoint: The interval, number and place of checkpoints.
        safety: Guards against bad gradients, hung ranks and corrupted memory.
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
    precision: Literal["fp32", "bf16"] | None = None
    zero_stage: Literal[0, 1, 2, 3] = 1
    deepspeed: str | None = field(
        default=None, metadata={"fills": "trainer.engine.deepspeed_settings:settings_of_file"}
    )
    micro_tokens: int = 16_384
    activation_checkpointing: bool = False
    compile: bool | None = None
    seed: int = 0
    skip: list[str] = field(default_factory=list)
    leave_out: str | None = None
    follow: bool = False
    follow_limit_minutes: float = 60.0
    storage_options: str | None = None
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    wandb: str | None = None
    peak_tflops: float | None = None

    @property
    def num_steps(self) -> int | None:
        """Number of optimizer steps of the whole run; None if the run ends after `budget_hours`."""
        return sum(phase.steps for phase in self.phases) if self.budget_hours is None else None

    def budget_seconds(self, phase: int) -> float | None:
        """Returns the seconds of `budget_hours` that a phase gets; None if there is no budget.

        Args:
            phase: Index of the phase.
        """
        if self.budget_hours is None:
            return None
        steps_of_phases = [entry.steps for entry in self.phases]
        share = steps_of_phases[phase] / sum(steps_of_phases)
        return 3_600 * self.budget_hours * share

    @property
    def mask_shares(self) -> tuple[float, float] | None:
        """The two shares between which `masking` moves; they are equal if it names only one.

        None if the masks are those of the dataset.
        """
        if self.masking == "static":
            return None
        first, last, _ = self._parse_masking()
        return first, last

    @property
    def mask_steps(self) -> int:
        """Number of steps in which the share of masked tokens moves to its last value.

        It is the number after @ in `masking`, or else the number of steps of the run. It must not
        be asked for if `masking` is "static".
        """
        return self._parse_masking()[2] or sum(phase.steps for phase in self.phases)

    def _parse_masking(self) -> tuple[float, float, int | None]:
        """Returns the numbers in `masking`, which must not be "static".

        Returns:
            The first share; the last share, which is the first one if `masking` names no other; and
            the number of steps after @, or None if there is no @.

        Raises:
            ValueError: `masking` has another form, or a share is not above 0 and at most 0.5.
        """
        match = re.fullmatch(r"(0?\.\d+)(?:-(0?\.\d+)(?:@([1-9]\d*))?)?", self.masking)
        first = float(match[1]) if match else 0.0
        last = float(match[2] or match[1]) if match else 0.0
        if match is None or not 0 < min(first, last) <= max(first, last) <= 0.5:
            raise ValueError(
                f"masking is {self.masking!r}; give static, a share such as 0.15, or 0.3-0.15 for"
                " one that moves along the run, or along so many steps as 0.3-0.15@9000; shares are"
                " above 0 and at most 0.5"
            )
        return first, last, int(match[3]) if match[3] else None

    def mask_share(self, phase: int, step: int) -> float:
        """Returns the share of tokens that are masked at a step of a phase (docs/order.md).

        Args:
            phase: Index of the phase.
            step: Number of steps of the phase before this one, so 0 for its first step.
        """
        first, last = self.mask_shares or (0.0, 0.0)
        total = self.mask_steps
        steps_before = sum(earlier.steps for earlier in self.phases[:phase])
        done = min(steps_before + step, total)
        return first + (last - first) * done / total

    def model_config(self, vocab_size: int) -> BertConfig:
        """Returns the sizes of the model that the run trains.

        Args:
            vocab_size: Number of entries of the dataset's vocabulary.

        Raises:
            ValueError: model.overrides sets a field that the dataset or the objective decides, or
                the sizes do not fit each other.
        """
        deciders = {"vocab_size": "the dataset's vocabulary", "is_causal": "objective"}
        for name, decider in deciders.items():
            if name in self.model.overrides:
                raise ValueError(f"model.overrides sets {name}; {decider} decides it, leave it out")
        decided = {"vocab_size": vocab_size, "is_causal": self.objective == "left-to-right"}
        return preset(self.model.preset, **decided, **self.model.overrides)

    def phases_of(self, seq_len: int) -> list[int]:
        """Returns the indices of all phases of one length.

        These phases read the same stream: each continues where the one before has ended.

        Args:
            seq_len: The length in tokens.
        """
        return [index for index, phase in enumerate(self.phases) if phase.seq_len == seq_len]

    def skipped(self, *phases: int) -> list[tuple[int, int]]:
        """Returns the ranges of stream positions that `skip` names for some phases.

        Args:
            phases: Indices of the phases.

        Returns:
            For each range its first position, and one past its last position.

        Raises:
            ValueError: An entry of `skip` is malformed, even one for another phase.
        """
        ranges = []
        for entry in self.skip:
            match = re.fullmatch(r"(\d+):(\d+)-(\d+)", entry)
            index, start, stop = map(int, match.groups()) if match else (0, 0, 0)
            if index >= len(self.phases) or start >= stop:
                most = len(self.phases) - 1
                form = f"PHASE:START-STOP, with a PHASE from 0 to {most} and START below STOP"
                raise ValueError(f"skip: {entry!r} is not {form}")
            if index in phases:
                ranges.append((start, stop))
        return ranges


Settings = TypeVar("Settings", bound=PretrainSettings)


def resolve(settings: Settings) -> Settings:
    """Checks settings, and writes values such as `steps` and `peak_lr` into the phases.

    Args:
        settings: The settings as the user gave them. `PretrainSettings` or a subclass.

    Returns:
        The same settings, except for the fields in `OF_PHASES`, which both `PretrainSettings` and
        `Phase` have. Their values are now in the phases, and those of `PretrainSettings` are empty.

    Raises:
        ValueError: Settings contradict each other, or a value is malformed.
    """
    if not settings.phases:
        raise ValueError("phases is empty; give at least one phase (see configs/pretrain)")
    phases = [_change_phase(settings, index) for index in range(len(settings.phases))]
    longest = max(phase.seq_len for phase in phases)
    if settings.micro_tokens < longest:
        raise ValueError(
            f"micro_tokens {settings.micro_tokens} cannot hold one instance of {longest} tokens"
        )
    settings.skipped()  # raises if an entry is malformed
    _check_training(settings)
    _check_epochs(settings)
    emptied: dict[str, Any] = {name: [] for name in OF_PHASES}
    return dataclasses.replace(settings, phases=phases, **emptied)


def _change_phase(settings: PretrainSettings, index: int) -> Phase:
    """Returns a phase with the values that the fields of `PretrainSettings` give for it.

    These are the fields in `OF_PHASES`. They win over the phase's own values.

    Args:
        settings: The settings of the run.
        index: Index of the phase.

    Raises:
        ValueError: A setting has neither one value nor one for each phase, or the changed phase is
            contradictory.
    """
    num_phases = len(settings.phases)
    changed: dict[str, Any] = {}
    for name in OF_PHASES:
        values = getattr(settings, name)
        if len(values) not in (0, 1, num_phases):
            phases = "there is 1 phase" if num_phases == 1 else f"there are {num_phases} phases"
            raise ValueError(
                f"--{name} has {len(values)} values and {phases}; give one for all, or {num_phases}"
            )
        if values:
            changed[name] = values[index if len(values) > 1 else 0]
    # A phase may have only one of these fields, so a value for one of them clears the other.
    if changed.keys() & {"warmup_fraction", "warmup_steps"}:
        changed = {"warmup_fraction": None, "warmup_steps": None} | changed
    return dataclasses.replace(settings.phases[index], **changed)


def _check_epochs(settings: PretrainSettings) -> None:
    """Refuses a number of epochs that is not positive, or that contradicts other settings."""
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


def _check_zero3(settings: PretrainSettings) -> None:
    """Refuses settings that do not work with ZeRO-3, which partitions the weights."""
    name = settings.optimizer.name
    if settings.zero_stage == 3 and name != "adamw":
        raise ValueError(
            f"optimizer {name} cannot run under zero_stage 3: its updates of whole tensors were"
            " held to one process on the partitions of ZeRO-1 and 2 only; use zero_stage 1 or 2, or"
            " optimizer adamw"
        )
    if settings.zero_stage == 3 and settings.compile:
        why = "whose hooks gather weights; use zero_stage 0 to 2"
        raise ValueError(f"compile does not work with zero_stage 3, {why}")


def _check_training(settings: PretrainSettings) -> None:
    """Refuses combinations of settings that would not train what the user asked for."""
    _check_zero3(settings)
    hours = settings.budget_hours
    if hours is not None and hours <= 0:
        raise ValueError(f"budget_hours is {hours}; it must be above 0, or null to train by steps")
    if settings.continue_from is not None:
        for name in ("init_from", "budget_hours"):
            if getattr(settings, name) is not None:
                raise ValueError(f"continue_from takes a run's weights and steps; leave {name} out")
    weight = settings.nsp_weight
    if not weight > 0:
        raise ValueError(f"nsp_weight is {weight}, not above 0; objective mlm leaves NSP out")
    shares = settings.mask_shares
    if shares and settings.objective == "left-to-right":
        raise ValueError("objective left-to-right masks nothing; leave masking out")
    if shares and shares[0] != shares[1] and settings.budget_hours is not None:
        found = f"masking {settings.masking} moves along the steps"
        raise ValueError(f"{found}; budget_hours leaves their number open: give one share or steps")
    target = settings.validation.stop_at_mlm_accuracy
    if target is not None and not 0 < target <= 1:
        found = f"validation.stop_at_mlm_accuracy is {target}"
        raise ValueError(f"{found}; an accuracy is above 0 and at most 1")
