"""Takes settings of a run from a ds_config.json: batches, ZeRO, precision, optimizer, schedule.

A value in the file counts like a setting in a `--config` file, so the two may not differ. If a
section of the file leaves a key out, DeepSpeed would use its default for the key. Such a default
becomes the setting only if no `--config` file gives the setting. Flags win over all of these.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.command_line.values import Given
from trainer.engine.deepspeed_file import DeepSpeedFile, read_deepspeed_file

_PHASE_SETTINGS = (
    "global_batch", "peak_lr", "steps", "warmup_steps", "warmup_form", "start_lr", "decay_form",
    "decay_power", "decay_from", "end_lr",
)  # fmt: skip
"""Settings that a ds_config.json can give and that belong to a phase of the training."""
_PHASE_SETTINGS_WITH_FLAG = ("global_batch", "peak_lr", "steps", "warmup_steps")
"""Settings of phases that have the flag --NAME; the others have --phases.NAME only."""
_BATCH = "train_batch_size"
_MICRO = "train_micro_batch_size_per_gpu"
_ACCUMULATED = "gradient_accumulation_steps"
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "lamb": "lamb", "muon": "muon"}
"""Our name of the optimizer for each of DeepSpeed's, in lower case."""
_RATE = "optimizer.params.lr"
_PEAK = "scheduler.params.warmup_max_lr"
_DEFAULT_RATE = 1e-3
"""DeepSpeed's default for both learning rates."""
_LEAST_WARMUP_STEPS = 2
"""The fewest steps of a warm-up: DeepSpeed makes two steps of a warm-up of one."""


@dataclass(frozen=True)
class ScheduleClass:
    """One of DeepSpeed's classes of learning-rate schedules, translated to settings of a phase.

    Attributes:
        shape: Settings of a phase whose values follow from the class alone, such as decay_form.
        params: Settings of a phase that a parameter of the class gives. The value is the name of
            the parameter, such as warmup_num_steps, and DeepSpeed's default for it; None if
            DeepSpeed has no default.
        shares: The settings in `params` whose parameters are fractions of peak_lr.
    """

    shape: dict[str, Any]
    params: dict[str, tuple[str, Any]]
    shares: tuple[str, ...] = ()


_WARMUP: dict[str, tuple[str, Any]] = {
    "warmup_steps": ("warmup_num_steps", 1_000),
    "warmup_form": ("warmup_type", "log"),
}
"""Entries of `ScheduleClass.params` that all classes share."""
_SCHEDULES = {
    "WarmupLR": ScheduleClass(
        {"decay_form": "polynomial", "decay_power": 0.0},
        {"peak_lr": ("warmup_max_lr", None), **_WARMUP, "start_lr": ("warmup_min_lr", 0.0)},
    ),
    "WarmupDecayLR": ScheduleClass(
        {"decay_form": "polynomial", "decay_power": 1.0, "decay_from": "warmup"},
        {
            "peak_lr": ("warmup_max_lr", _DEFAULT_RATE),
            "steps": ("total_num_steps", None),
            **_WARMUP,
            "start_lr": ("warmup_min_lr", 0.0),
            "end_lr": ("warmup_min_lr", 0.0),
        },
    ),
    "WarmupCosineLR": ScheduleClass(
        {"decay_form": "cosine", "decay_from": "warmup"},
        {
            "steps": ("total_num_steps", None),
            **_WARMUP,
            "start_lr": ("warmup_min_ratio", 0.0),
            "end_lr": ("cos_min_ratio", 1e-4),
        },
        shares=("start_lr", "end_lr"),
    ),
}


@dataclass(frozen=True)
class Statement:
    """One setting of the run that follows from a ds_config.json.

    Attributes:
        setting: The dotted key of the setting, such as optimizer.eps. For a setting of a phase it
            is the name without "phases[0].", such as peak_lr.
        value: The value of the setting.
        key: What messages call the place in the file: the dotted key that gives the value, or words
            for several keys.
        is_stated: Whether the file gives the value. Otherwise the file has the section but not the
            key, and the value is DeepSpeed's default.
        of_peak: Whether the value is a fraction of the phase's peak_lr.
    """

    setting: str
    value: Any
    key: str
    is_stated: bool = True
    of_peak: bool = False

    @property
    def source(self) -> str:
        """Words for a message that name the origin of the value: a key, or DeepSpeed's default."""
        return self.key if self.is_stated else f"{self.key}, DeepSpeed's where the file has none"


def settings_of_file(
    path: str, in_files: Mapping[str, Given], flags: Mapping[str, Given]
) -> dict[str, Given]:
    """Returns the settings that a ds_config.json adds to those of flags and `--config` files.

    Settings that flags or `--config` files give are left out, except for one case. If the file
    gives another setting as a fraction of peak_lr, the result has the peak_lr of each phase,
    wherever it is from.

    Args:
        path: The ds_config.json.
        in_files: Settings in `--config` files, by dotted keys such as phases[0].steps.
        flags: Settings given as flags, by dotted keys. A flag wins over both files.

    Returns:
        The settings by dotted keys. Each has its value and, for messages, the place in the file.

    Raises:
        ValueError: The ds_config.json is malformed, or gives another value than a `--config` file.
            The message has one line for each such setting.
    """
    num_phases = in_files["phases"].value if "phases" in in_files else 1
    prefixes = [f"phases[{index}]." for index in range(num_phases)]
    length_keys = [f"{prefix}seq_len" for prefix in prefixes]
    lengths = [in_files[key].value for key in length_keys if key in in_files]
    statements = _find(read_deepspeed_file(path), _world_size(flags), lengths)

    filled: dict[str, Given] = {}
    faults = []
    for statement in _unite(path, statements):
        name = statement.setting
        if _flags_of(name) & flags.keys():
            continue
        # If a --config file gives the setting once for all phases, only that value is compared.
        is_per_phase = name in _PHASE_SETTINGS and name not in in_files
        for index, prefix in enumerate(prefixes if is_per_phase else [""]):
            value = statement.value
            if statement.of_peak:
                peak = _peak_lr(index, filled, in_files, flags)
                if peak is None:  # the phase has no peak_lr, which is refused later
                    continue
                # `Phase` checks this value against its peak_lr even before the flag --peak_lr is
                # applied, so the phase has to have the right peak_lr from the beginning.
                filled[f"{prefix}peak_lr"] = Given(peak, "")
                value *= peak
            target = f"{prefix}{name}"
            config_value, where = _config_value(target, in_files)
            if config_value is None:
                filled[target] = Given(value, f"{path}, {statement.source}: ")
            elif statement.is_stated and config_value not in (value, [value]):
                fault = f"{target} is {config_value}, {path} says {value} by {statement.key}"
                faults.append(f"{where}{fault}; give {_flag_of(name)} to choose")
    if faults:
        raise ValueError("\n".join(faults))
    return filled


def _world_size(flags: Mapping[str, Given]) -> int:
    """Returns the number of ranks for which the settings are.

    It is the value of the flag --world_size, which the command `plan` has, or else the number of
    processes that the launcher of this job has started.
    """
    planned = flags.get("world_size")
    return int(planned.value if planned else os.environ.get("WORLD_SIZE", "1"))


def _flags_of(name: str) -> set[str]:
    """Returns the names of all flags that can give a setting, without the dashes before them.

    For warmup_steps, flags of warmup_fraction are among them, because both say how long the warm-up
    is.

    Args:
        name: The name of the setting, as in `Statement.setting`.
    """
    share = name.replace("warmup_steps", "warmup_fraction")
    return {name, share, f"phases.{name}", f"phases.{share}"}


def _flag_of(name: str) -> str:
    """Returns the flag that a message tells the user to give for a setting."""
    is_under_phases = name in _PHASE_SETTINGS and name not in _PHASE_SETTINGS_WITH_FLAG
    return f"--phases.{name}" if is_under_phases else f"--{name}"


def _config_value(target: str, in_files: Mapping[str, Given]) -> tuple[Any, str]:
    """Returns the value that `--config` files give to a setting, and where it is in them.

    If a file has warmup_fraction in place of warmup_steps, the fraction is converted to a number of
    steps. That needs a single number of steps. Otherwise the value is text such as "0.1 of the
    steps", which equals no number and is shown in the message about the difference.

    Args:
        target: The setting's dotted key, such as phases[0].warmup_steps.
        in_files: Settings in `--config` files, by dotted keys.

    Returns:
        The value, and its place as "FILE:LINE: "; None and "" if no file gives the setting.
    """
    if target in in_files:
        return in_files[target].value, in_files[target].where
    share = in_files.get(target.replace("warmup_steps", "warmup_fraction"))
    if share is None:
        return None, ""
    steps = in_files.get(target.replace("warmup_steps", "steps"))
    if steps is None or list in (type(steps.value), type(share.value)):
        return f"{share.value} of the steps", share.where
    return round(share.value * steps.value), share.where


def _peak_lr(
    index: int,
    filled: Mapping[str, Given],
    in_files: Mapping[str, Given],
    flags: Mapping[str, Given],
) -> float | None:
    """Returns the peak_lr of a phase; None if nothing gives it.

    Flags win over `--config` files, which win over the ds_config.json.

    Args:
        index: Index of the phase.
        filled: Settings taken from the ds_config.json so far.
        in_files: Settings in `--config` files, by dotted keys.
        flags: Settings given as flags, by dotted keys.
    """
    phase_key = f"phases[{index}].peak_lr"
    places = [
        (flags, "phases.peak_lr"),
        (flags, "peak_lr"),
        (in_files, "peak_lr"),
        (in_files, phase_key),
        (filled, phase_key),
        (filled, "peak_lr"),
    ]
    for settings, key in places:
        value = settings[key].value if key in settings else None
        if value not in (None, []):
            values = value if isinstance(value, list) else [value]
            return float(values[index if len(values) > 1 else 0])
    return None


def _unite(path: str, statements: Iterable[Statement]) -> list[Statement]:
    """Returns one statement for each setting.

    If there are several, a value that the file gives wins over a default of DeepSpeed.

    Args:
        path: The ds_config.json, for messages.
        statements: All statements of the file.

    Raises:
        ValueError: The file gives two different values for one setting.
    """
    united: dict[str, Statement] = {}
    for statement in statements:
        before = united.get(statement.setting)
        if before is None or not before.is_stated:
            united[statement.setting] = statement
        elif statement.is_stated and before.value != statement.value:
            both = f"{before.key} is {before.value} and {statement.key} is {statement.value}"
            raise ValueError(f"{path}: {both}; leave one of them out")
    return list(united.values())


def _find(file: DeepSpeedFile, world_size: int, lengths: list[int]) -> Iterator[Statement]:
    """Yields all settings that follow from a file.

    The statement about peak_lr comes before the statements about fractions of peak_lr.

    Args:
        file: The ds_config.json.
        world_size: The number of ranks.
        lengths: The lengths of the phases in tokens, as far as they are known.

    Raises:
        ValueError: Values of the file contradict each other, or name an optimizer, a schedule or a
            parameter that this trainer does not have.
    """
    yield from _find_batches(file, world_size, max(lengths, default=0))
    yield from _find_switches(file)
    yield from _find_optimizer(file)
    yield from _find_schedule(file)


def _find_batches(file: DeepSpeedFile, world_size: int, seq_len: int) -> Iterator[Statement]:
    """Yields the settings global_batch and micro_tokens, as far as the file decides them.

    A file for DeepSpeed may have three numbers: the global batch, the instances of a micro-batch,
    and the accumulation steps. The global batch is the product of the other two and the number of
    ranks, so two of the numbers give the third.

    Args:
        file: The ds_config.json.
        world_size: The number of ranks.
        seq_len: The longest length of the phases, in tokens; 0 if it is not known.

    Raises:
        ValueError: The file has all three numbers, and they do not fit each other.
    """
    batch = file.values.get(_BATCH)
    micro = file.values.get(_MICRO)
    accumulated = file.values.get(_ACCUMULATED)
    if micro and accumulated:
        product = micro * accumulated * world_size
        if batch not in (None, product):
            raise ValueError(
                f"{file.path}: {_BATCH} is {batch}, but {micro} instances, {accumulated} times on"
                f" {world_size} ranks, are {product}; leave one of the three out"
            )
        yield Statement("global_batch", product, f"{_MICRO} and {_ACCUMULATED}")
    elif batch:
        yield Statement("global_batch", batch, _BATCH)
    elif micro and not file.autos & {_BATCH, _ACCUMULATED}:
        yield Statement("global_batch", micro * world_size, _ACCUMULATED, is_stated=False)
    if not micro and batch and accumulated:
        micro = -(-batch // (accumulated * world_size))  # rounded up
    if micro and seq_len:
        key = f"{_MICRO}, {micro} of {seq_len} tokens"
        yield Statement("micro_tokens", micro * seq_len, key)


def _find_switches(file: DeepSpeedFile) -> Iterator[Statement]:
    """Yields zero_stage, precision, the limit of gradient norms, and the project of wandb."""
    values = file.values
    if "zero_optimization.stage" in values:
        yield Statement("zero_stage", values["zero_optimization.stage"], "zero_optimization.stage")
    elif "zero_optimization" in file.sections and "zero_optimization.stage" not in file.autos:
        yield Statement("zero_stage", 0, "zero_optimization.stage", is_stated=False)
    if "bf16.enabled" in values:
        precision = "bf16" if values["bf16.enabled"] else "fp32"
        yield Statement("precision", precision, "bf16.enabled")
    if "gradient_clipping" in values:
        clipping = values["gradient_clipping"]
        yield Statement("optimizer.max_grad_norm", clipping, "gradient_clipping")
    if values.get("wandb.enabled"):
        project = values.get("wandb.project", "deepspeed")
        yield Statement("wandb", project, "wandb.project", "wandb.project" in values)


def _find_optimizer(file: DeepSpeedFile) -> Iterator[Statement]:
    """Yields the optimizer's settings, with the defaults of DeepSpeed's FusedAdam or FusedLamb.

    The optimizer's learning rate is yielded as peak_lr, unless the schedule has a rate.

    Raises:
        ValueError: The optimizer is unknown, is not named, or does not have one of the parameters.
    """
    prefix = "optimizer.params."
    params = {key.removeprefix(prefix): key for key in file.values if key.startswith(prefix)}
    kind = file.values.get("optimizer.type")
    if kind is None:
        if params:
            raise ValueError(f"{file.path}: optimizer has params and no type; say AdamW or Lamb")
        return
    name = _OPTIMIZERS.get(kind.lower())
    if name is None:
        choices = "AdamW, Adam, Lamb, Muon"
        raise ValueError(f"{file.path}: optimizer.type is {kind}; choose {choices}")
    _check_params(file, kind, params)
    yield Statement("optimizer.name", name, "optimizer.type")

    uses_torch_adam = bool(file.values.get("optimizer.params.torch_adam")) and name == "adamw"
    defaults = {
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01 if uses_torch_adam else 0.0,
        "bias_correction": True,
    }
    for leaf, default in defaults.items():
        key = f"{prefix}{leaf}"
        if key in file.autos:
            continue
        value = file.values.get(key, default)
        is_stated = leaf in params
        if leaf == "betas":
            for index, beta in enumerate(value):
                setting = f"optimizer.beta{index + 1}"
                yield Statement(setting, beta, f"{key}.{index}", is_stated)
        else:
            yield Statement(f"optimizer.{leaf}", value, key, is_stated)

    if "max_grad_norm" in params:
        key = params["max_grad_norm"]
        yield Statement("optimizer.max_grad_norm", file.values[key], key)
    rate = f"{prefix}{'adam_lr' if name == 'muon' else 'lr'}"
    if rate not in file.autos and not _schedule_has_rate(file):
        yield Statement("peak_lr", file.values.get(rate, _DEFAULT_RATE), rate, rate in file.values)


def _check_params(file: DeepSpeedFile, kind: str, params: Mapping[str, str]) -> None:
    """Checks that this trainer supports the parameters that the file gives to its optimizer.

    Args:
        file: The ds_config.json.
        kind: The optimizer as the file names it.
        params: The file's dotted key of each parameter, by the parameter's name.

    Raises:
        ValueError: A parameter belongs to another optimizer or has no counterpart here, `betas` are
            not two numbers, or weight decay is not decoupled.
    """
    name = _OPTIMIZERS[kind.lower()]
    values = {leaf: file.values[key] for leaf, key in params.items()}
    muon_params = ("adam_lr", "muon_lr", "momentum", "nesterov", "ns_steps", "ns_method")
    lamb_params = ("max_coeff", "min_coeff", "eps_inside_sqrt")
    for leaf, value in values.items():
        is_foreign_muon = leaf in muon_params and name != "muon"
        is_foreign_lamb = leaf in lamb_params and name != "lamb"
        # DeepSpeed's Muon scales its updates in another way than ours, so its rate does not carry
        # over.
        is_muon_rate = name == "muon" and leaf in ("lr", "muon_lr")
        if is_foreign_muon or is_foreign_lamb or is_muon_rate:
            cure = "leave it out"
            if is_muon_rate:
                cure = "Muon's updates have AdamW's size, give adam_lr"
            found = f"{file.path}: {params[leaf]} is {value}"
            raise ValueError(f"{found}; {kind} has no such setting here: {cure}")
    if len(values.get("betas", [0.0, 0.0])) != 2:
        raise ValueError(
            f"{file.path}: {params['betas']} is {values['betas']}, expected two numbers"
        )
    is_coupled = kind.lower() == "adam" and values.get("adam_w_mode") is False
    if is_coupled and values.get("weight_decay"):
        found = f"{params['adam_w_mode']} is false with weight_decay {values['weight_decay']}"
        raise ValueError(f"{file.path}: {found}; weight decay is decoupled here, as AdamW's is")


def _decides_schedule(file: DeepSpeedFile) -> bool:
    """Returns whether the schedule is taken from the file, and not from the run's other settings.

    It is taken from the file if the file has a scheduler, with one exception. If some parameters of
    the scheduler are "auto" and no other parameter has a value that means anything, the file leaves
    the schedule to the run. A value such as `"warmup_min_lr": 0` means nothing here.
    """
    prefix = "scheduler.params."
    neutral = {"warmup_min_lr": 0.0, "warmup_min_ratio": 0.0, "last_batch_iteration": -1}
    deciding_keys = [
        key
        for key, value in file.values.items()
        if key.startswith(prefix) and neutral.get(key.removeprefix(prefix)) != value
    ]
    has_auto = any(key.startswith(prefix) for key in file.autos)
    return "scheduler.type" in file.values and (bool(deciding_keys) or not has_auto)


def _schedule_has_rate(file: DeepSpeedFile) -> bool:
    """Returns whether the file's schedule gives a learning rate of its own.

    DeepSpeed prefers such a rate to the optimizer's. WarmupCosineLR has none, because it scales the
    optimizer's rate.
    """
    is_cosine = file.values.get("scheduler.type") == "WarmupCosineLR"
    return _PEAK in file.values and not is_cosine


def _find_schedule(file: DeepSpeedFile) -> Iterator[Statement]:
    """Yields the settings of the file's schedule, with DeepSpeed's defaults for missing keys.

    Nothing is yielded if the file leaves the schedule to the run (`_decides_schedule`).

    Raises:
        ValueError: The schedule is unknown, does not have one of its parameters, or would silently
            ignore the optimizer's learning rate.
    """
    schedule = _schedule_of(file)
    if schedule is None or not _decides_schedule(file):
        return
    if file.values["scheduler.type"] == "WarmupDecayLR":
        _check_rate(file)
    for setting, (leaf, default) in schedule.params.items():
        key = f"scheduler.params.{leaf}"
        value = file.values.get(key, default)
        if value is None or key in file.autos:
            continue
        if setting == "warmup_steps":
            value = max(_LEAST_WARMUP_STEPS, value)
        yield Statement(
            setting,
            value,
            key,
            is_stated=key in file.values,
            of_peak=setting in schedule.shares,
        )
    for setting, value in schedule.shape.items():
        yield Statement(setting, value, "scheduler.type")


def _schedule_of(file: DeepSpeedFile) -> ScheduleClass | None:
    """Returns the class of the file's schedule; None if the file has no scheduler.

    Raises:
        ValueError: The class is unknown, or does not have one of the parameters.
    """
    prefix = "scheduler.params."
    kind = file.values.get("scheduler.type")
    stated = {key.removeprefix(prefix) for key in file.values if key.startswith(prefix)}
    if kind is None:
        if stated:
            raise ValueError(f"{file.path}: scheduler has params and no type; say WarmupDecayLR")
        return None

    if kind not in _SCHEDULES:
        choices = ", ".join(_SCHEDULES)
        raise ValueError(f"{file.path}: scheduler.type is {kind}; choose {choices}")
    schedule = _SCHEDULES[kind]
    taken = {leaf for leaf, _ in schedule.params.values()} | {"last_batch_iteration"}
    unknown = sorted(stated - taken)
    if unknown:
        found = f"{file.path} sets {prefix}{unknown[0]}, which {kind} does not take"
        raise ValueError(f"{found}; it takes {', '.join(sorted(taken))}")
    return schedule


def _check_rate(file: DeepSpeedFile) -> None:
    """Checks that WarmupDecayLR would not silently replace the optimizer's learning rate.

    If the file gives this schedule no rate, DeepSpeed takes the schedule's default, 0.001, whatever
    rate the optimizer has.

    Raises:
        ValueError: The schedule has no rate, and the optimizer has another one than that default.
    """
    is_left_out = _PEAK not in file.values and _PEAK not in file.autos
    if is_left_out and file.values.get(_RATE, _DEFAULT_RATE) != _DEFAULT_RATE:
        raise ValueError(
            f"{file.path}: {_RATE} is {file.values[_RATE]}, but WarmupDecayLR's {_PEAK} is"
            f" {_DEFAULT_RATE} where it is left out, and DeepSpeed takes that; say {_PEAK}"
        )
