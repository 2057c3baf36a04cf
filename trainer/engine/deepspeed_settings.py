"""Takes settings of a run from a ds_config.json: batches, ZeRO, precision, optimizer, schedule.

A value in the file counts like a setting in a `--config` file, so the two may not differ. If a
section leaves a key out, DeepSpeed has a default for it. That default is used only if nothing else
gives the setting.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.command_line.values import Given
from trainer.engine.deepspeed_file import DeepSpeedFile, read_deepspeed_file

_OF_PHASES = (
    "global_batch", "peak_lr", "steps", "warmup_steps", "warmup_form", "start_lr", "decay_form",
    "decay_power", "decay_from", "end_lr",
)  # fmt: skip
_FLAGS_OF_PHASES = ("global_batch", "peak_lr", "steps", "warmup_steps")
"""Of them those that have a flag of their own, beside --phases.NAME."""
_BATCH, _MICRO = "train_batch_size", "train_micro_batch_size_per_gpu"
_ACCUMULATED = "gradient_accumulation_steps"
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "lamb": "lamb", "muon": "muon"}
_RATE, _PEAK = "optimizer.params.lr", "scheduler.params.warmup_max_lr"
_DEFAULT_RATE = 1e-3
_LEAST_WARMUP_STEPS = 2
"""DeepSpeed warms up for two steps where one is asked for."""


@dataclass(frozen=True)
class ScheduleClass:
    """One of DeepSpeed's classes of schedules, as the settings of a phase.

    Attributes:
        shape: Settings that the class itself decides.
        params: For each setting, the class's parameter that gives it, and DeepSpeed's default for
            the parameter; None if there is no default.
        shares: Settings of `params` whose parameters are shares of peak_lr.
    """

    shape: dict[str, Any]
    params: dict[str, tuple[str, Any]]
    shares: tuple[str, ...] = ()


_WARMUP: dict[str, tuple[str, Any]] = {
    "warmup_steps": ("warmup_num_steps", 1_000),
    "warmup_form": ("warmup_type", "log"),
}
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
    """One setting of the run as the file gives it.

    Attributes:
        setting: The setting's name; for a setting of a phase, the last part of the name.
        value: The setting's value.
        key: The file's key.
        is_stated: Whether the file states it. Otherwise it is DeepSpeed's default in a section of
            the file.
        of_peak: Whether the value is a share of the phase's peak_lr.
    """

    setting: str
    value: Any
    key: str
    is_stated: bool = True
    of_peak: bool = False

    @property
    def source(self) -> str:
        """Returns what messages call the source of the value."""
        return self.key if self.is_stated else f"{self.key}, DeepSpeed's where the file has none"


def settings_of_file(
    path: str, in_files: Mapping[str, Given], flags: Mapping[str, Given]
) -> dict[str, Given]:
    """Returns the settings that a ds_config.json gives in addition to flags and `--config` files.

    Args:
        path: The ds_config.json.
        in_files: Settings in `--config` files, by dotted keys.
        flags: Settings given as flags. A flag wins over both files.

    Raises:
        ValueError: The ds_config.json is malformed, or differs from a `--config` file. The message
            has one line for each difference.
    """
    num_phases = in_files["phases"].value if "phases" in in_files else 1
    phases = [f"phases[{index}]." for index in range(num_phases)]
    lengths = [in_files[f"{each}seq_len"].value for each in phases if f"{each}seq_len" in in_files]
    statements = _unite(path, _find(read_deepspeed_file(path), _world_size(flags), lengths))
    filled: dict[str, Given] = {}
    faults = []
    for statement in statements:
        name = statement.setting
        if _flags_of(name) & flags.keys():
            continue
        of_phases = name in _OF_PHASES and name not in in_files
        for index, phase in enumerate(phases if of_phases else [""]):
            value = statement.value
            if statement.of_peak:
                peak = _peak_lr(index, filled, in_files, flags)
                if peak is None:  # which is missing, and will be said so
                    continue
                filled[f"{phase}peak_lr"] = Given(peak, "")  # a phase is checked with both
                value *= peak
            target = f"{phase}{name}"
            found, where = _given(target, in_files)
            if found is None:
                filled[target] = Given(value, f"{path}, {statement.source}: ")
            elif statement.is_stated and found not in (value, [value]):
                said = f"{target} is {found}, {path} says {value} by {statement.key}"
                faults.append(f"{where}{said}; give {_flag_of(name)} to choose")
    if faults:
        raise ValueError("\n".join(faults))
    return filled


def _world_size(flags: Mapping[str, Given]) -> int:
    """Returns the number of ranks: the one that is being planned for, or this job's."""
    of_plan = flags.get("world_size")
    return int(of_plan.value if of_plan else os.environ.get("WORLD_SIZE", "1"))


def _flags_of(name: str) -> set[str]:
    """Returns the flags that give a setting."""
    share = name.replace("warmup_steps", "warmup_fraction")
    return {name, share, f"phases.{name}", f"phases.{share}"}


def _flag_of(name: str) -> str:
    has_none = name in _OF_PHASES and name not in _FLAGS_OF_PHASES
    return f"--phases.{name}" if has_none else f"--{name}"


def _given(target: str, in_files: Mapping[str, Given]) -> tuple[Any, str]:
    """Returns the value of a setting in `--config` files, and its place; None and "" without one.

    A warm-up given as a share of the steps is converted to steps.
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
    """Returns the peak_lr of a phase, from flags, a `--config` file or the ds_config.json."""
    of_phase = f"phases[{index}].peak_lr"
    places = [(flags, "phases.peak_lr"), (flags, "peak_lr"), (in_files, "peak_lr")]
    for given, key in [*places, (in_files, of_phase), (filled, of_phase), (filled, "peak_lr")]:
        if key in given and (value := given[key].value) not in (None, []):
            values = value if isinstance(value, list) else [value]
            return float(values[index if len(values) > 1 else 0])
    return None


def _unite(path: str, found: Iterable[Statement]) -> list[Statement]:
    """Returns one statement for each setting; a stated value wins over a default.

    Raises:
        ValueError: The file states two values for one setting.
    """
    united: dict[str, Statement] = {}
    for statement in found:
        before = united.get(statement.setting)
        if before is None or not before.is_stated:
            united[statement.setting] = statement
        elif statement.is_stated and before.value != statement.value:
            both = f"{before.key} is {before.value} and {statement.key} is {statement.value}"
            raise ValueError(f"{path}: {both}; leave one of them out")
    return list(united.values())


def _find(file: DeepSpeedFile, world_size: int, lengths: list[int]) -> Iterator[Statement]:
    """Yields the settings in a file, peak_lr before the settings that are shares of it."""
    yield from _find_batches(file, world_size, max(lengths, default=0))
    yield from _find_switches(file)
    yield from _find_optimizer(file)
    yield from _find_schedule(file)


def _find_batches(file: DeepSpeedFile, world_size: int, seq_len: int) -> Iterator[Statement]:
    """Yields the global batch and micro_tokens. Two of DeepSpeed's three numbers give the third.

    Args:
        file: The ds_config.json.
        world_size: The number of ranks.
        seq_len: The longest length of the phases, in tokens; 0 if it is not known.
    """
    batch, micro, accumulated = (file.values.get(name) for name in (_BATCH, _MICRO, _ACCUMULATED))
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
        micro = -(-batch // (accumulated * world_size))
    if micro and seq_len:
        by = f"{_MICRO}, {micro} of {seq_len} tokens"
        yield Statement("micro_tokens", micro * seq_len, by)


def _find_switches(file: DeepSpeedFile) -> Iterator[Statement]:
    """Yields the settings that a single key of the file gives."""
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

    peak_lr is left out if the schedule gives it.
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
    is_torchs = bool(file.values.get("optimizer.params.torch_adam")) and name == "adamw"
    defaults = {
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": 0.01 if is_torchs else 0.0,
        "bias_correction": True,
    }
    for leaf, default in defaults.items():
        key = f"{prefix}{leaf}"
        if key in file.autos:
            continue
        value, is_stated = file.values.get(key, default), leaf in params
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
    if rate not in file.autos and not _has_own_rate(file):
        yield Statement("peak_lr", file.values.get(rate, _DEFAULT_RATE), rate, rate in file.values)


def _check_params(file: DeepSpeedFile, kind: str, params: Mapping[str, str]) -> None:
    """Refuses parameters that this optimizer does not have."""
    name = _OPTIMIZERS[kind.lower()]
    values = {leaf: file.values[key] for leaf, key in params.items()}
    of_muon = ("adam_lr", "muon_lr", "momentum", "nesterov", "ns_steps", "ns_method")
    of_lamb = ("max_coeff", "min_coeff", "eps_inside_sqrt")
    for leaf, value in values.items():
        is_other = (leaf in of_muon and name != "muon") or (leaf in of_lamb and name != "lamb")
        is_rate = name == "muon" and leaf in ("lr", "muon_lr")
        if is_other or is_rate:  # Muon's updates had another root mean square
            cure = "Muon's updates have AdamW's size, give adam_lr" if is_rate else "leave it out"
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


def _says_a_schedule(file: DeepSpeedFile) -> bool:
    """Returns whether the file has a scheduler that is not left to the run by "auto" alone."""
    prefix = "scheduler.params."
    neutral = {"warmup_min_lr": 0.0, "warmup_min_ratio": 0.0, "last_batch_iteration": -1}
    said = [
        key
        for key, value in file.values.items()
        if key.startswith(prefix) and neutral.get(key.removeprefix(prefix)) != value
    ]
    has_auto = any(key.startswith(prefix) for key in file.autos)
    return "scheduler.type" in file.values and (bool(said) or not has_auto)


def _has_own_rate(file: DeepSpeedFile) -> bool:
    """Returns whether the schedule states a rate. DeepSpeed prefers it to the optimizer's."""
    is_cosine = file.values.get("scheduler.type") == "WarmupCosineLR"
    return _PEAK in file.values and not is_cosine


def _find_schedule(file: DeepSpeedFile) -> Iterator[Statement]:
    """Yields the schedule's settings, with DeepSpeed's defaults for keys that are left out."""
    schedule = _schedule_of(file)
    if schedule is None or not _says_a_schedule(file):
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
        yield Statement(setting, value, key, key in file.values, setting in schedule.shares)
    for setting, value in schedule.shape.items():
        yield Statement(setting, value, "scheduler.type")


def _schedule_of(file: DeepSpeedFile) -> ScheduleClass | None:
    """Returns the class of the file's schedule, or None.

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
    if wrong := sorted(stated - taken):
        found = f"{file.path} sets {prefix}{wrong[0]}, which {kind} does not take"
        raise ValueError(f"{found}; it takes {', '.join(sorted(taken))}")
    return schedule


def _check_rate(file: DeepSpeedFile) -> None:
    """Refuses a rate of the optimizer that DeepSpeed would silently not use."""
    is_unsaid = _PEAK not in file.values and _PEAK not in file.autos
    if is_unsaid and file.values.get(_RATE, _DEFAULT_RATE) != _DEFAULT_RATE:
        raise ValueError(
            f"{file.path}: {_RATE} is {file.values[_RATE]}, but WarmupDecayLR's {_PEAK} is"
            f" {_DEFAULT_RATE} where it is left out, and DeepSpeed takes that; say {_PEAK}"
        )
