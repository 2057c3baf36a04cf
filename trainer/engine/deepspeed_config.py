"""DeepSpeed's settings: what a ds_config.json says, and what the trainer writes."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST_BUCKET = 2**25
"""Elements that DeepSpeed reduces at once, 128 MiB in fp32; its 5e8 copies all gradients."""
# Keys of the file and of its zero_optimization that DeepSpeed is given as they stand there.
_PASSED = re.compile(
    "comms_logger|flops_profiler|wall_clock_breakdown|memory_breakdown|reduce_bucket_size"
    "|allgather_bucket_size|reduce_scatter|overlap_comm|contiguous_gradients|parameter_alignment"
    "|use_multi_rank_bucket_allreduce|round_robin_gradients|stage3_(max|prefetch|param)_.*"
)
# With them those that settings of the run say, and those that change nothing that is trained.
_KNOWN = re.compile(
    f"{_PASSED.pattern}|zero_optimization|stage|bf16|gradient_clipping|optimizer|scheduler"
    "|train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|steps_per_print"
    "|zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|sub_group_size"
    "|allgather_partitions|load_from_fp32_weights|elastic_checkpoint|stage3_gather_.*"
)
_REASONS = {
    "fp16|amp|torch_autocast": "there is no loss scaling, use bf16",
    "offload_.*|cpu_offload.*|aio": "what ZeRO partitions stays on its device",
    "communication_data_type|data_types|prescale_.*|gradient_predivide_factor"
    "|zero_quantized_.*|zero_hpz_.*|mics_.*": "gradients are summed and reduced in fp32, whole",
    "curriculum_learning|data_.*": "the dataset decides which instance comes when",
    "progressive_layer_drop|eigenvalue|quantize_training|compression_training|sparse_.*"
    "|hybrid_engine": "the model is BERT as it stands",
    "tensor_parallel|sequence_parallel_size|pipeline|moe": "ranks share the data alone",
    "activation_checkpointing": "--activation_checkpointing computes layers again",
    "tensorboard|wandb|csv_monitor|comet": "TensorBoard's curves are written, --wandb sends others",
    "checkpoint|elasticity": "checkpoints are ours, and continue on any number of ranks",
    "autotuning": "`plan` says what fits",
}
# Keys of the file with their sections, and the settings that say the same.
_SAME = {
    "zero_optimization.stage": "zero_stage",
    "bf16.enabled": "precision",
    "gradient_clipping": "optimizer.max_grad_norm",
    "optimizer.type": "optimizer.name",
    "optimizer.params.betas.0": "optimizer.beta1",
    "optimizer.params.betas.1": "optimizer.beta2",
    "optimizer.params.lr": "peak_lr",
    "optimizer.params.adam_lr": "peak_lr",
    "optimizer.params.eps": "optimizer.eps",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "optimizer.params.bias_correction": "optimizer.bias_correction",
    "optimizer.params.max_grad_norm": "optimizer.max_grad_norm",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.warmup_max_lr": "peak_lr",
    "scheduler.params.total_num_steps": "steps",
    "scheduler.type": "decay_power",
}
_VALUES: dict[str, dict[str, Any]] = {
    "precision": {"True": "bf16", "False": "fp32"},
    "optimizer.name": {"AdamW": "adamw", "Adam": "adamw", "Lamb": "lamb", "Muon": "muon"},
    "decay_power": {"WarmupLR": 0.0, "WarmupDecayLR": 1.0},
}
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OF_PHASES = ("global_batch", "peak_lr", "steps", "warmup_steps", "decay_power", "end_lr")

Found = Iterator[tuple[str, Any, str]]  # our key, the value, the file's key


def read_deepspeed_file(path: str | None) -> dict[str, Any]:
    """What DeepSpeed is given of a ds_config.json; nothing without a file."""
    said = _read(path) if path is not None else {}
    zero = _passed(said.get("zero_optimization", {}))
    return _passed(said) | ({"zero_optimization": zero} if zero else {})


def _passed(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in said.items() if _PASSED.fullmatch(key) and each != "auto"}


def settings_of_file(
    path: str, in_files: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of a ds_config.json that no flag gives; no file of `--config` may say otherwise."""
    count = in_files["phases"].value if "phases" in in_files else 1
    phases = [f"phases[{index}]." for index in range(count)]
    lengths = [in_files[f"{each}seq_len"].value for each in phases if f"{each}seq_len" in in_files]
    of_plan = flags.get("world_size")
    world_size = of_plan.value if of_plan else os.environ.get("WORLD_SIZE", "1")
    everything = _find(_read(path), int(world_size), max(lengths, default=0))
    filled: dict[str, Any] = {}
    faults = []
    for key, (value, name) in {key: found for key, *found in everything}.items():
        if {key, f"phases.{key}", key.replace("_steps", "_fraction")} & flags.keys():
            continue
        of_phases = key in _OF_PHASES and key not in in_files
        for target in [f"{each}{key}" for each in phases] if of_phases else [key]:
            found, where = _given(target, in_files)
            if found is None:
                filled[target] = value
            elif found not in (value, [value]):
                said = f"{target} is {found}, {path} says {value} by {name}"
                faults.append(f"{where}{said}; give --{key} to choose")
    if faults:
        raise ValueError("\n".join(faults))
    return filled


def _given(target: str, in_files: Mapping[str, Any]) -> tuple[Any, str]:
    """What files say of a setting, and where; None where they do not."""
    phase, _, name = target.rpartition(".")
    share, steps = (in_files.get(f"{phase}.{each}") for each in ("warmup_fraction", "steps"))
    if name == "warmup_steps" and share and steps:
        return round(share.value * steps.value), share.where
    return (in_files[target].value, in_files[target].where) if target in in_files else (None, "")


def _read(path: str) -> dict[str, Any]:
    """The file; refuses what has no meaning here."""
    try:
        said = json.loads(Path(path).read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    zero = said.get("zero_optimization", {}) if isinstance(said, dict) else None
    if isinstance(zero, bool):
        zero = {"stage": int(zero)}
    if not isinstance(zero, dict):
        found = str(said)[:60]
        raise ValueError(f"{path}: found {found}, expected the settings of DeepSpeed")  # noqa: TRY004
    faults = [
        f"{path} sets {section}{key}, which has no place here: {_reason(key)}; leave it out"
        for section, keys in (("", said), ("zero_optimization.", zero))
        for key, value in keys.items()
        if not _KNOWN.fullmatch(key) and not _is_off(value)
    ]
    if faults:
        raise ValueError("\n".join(faults))
    return {**said, "zero_optimization": zero}


def _reason(key: str) -> str:
    found = (reason for known, reason in _REASONS.items() if re.fullmatch(known, key))
    return next(found, "no such key is known")


def _is_off(value: Any) -> bool:
    """Whether a section does nothing, or says what is so here in any case."""
    if isinstance(value, dict):
        switches = [value[key] for key in ("enabled", "device") if key in value]
        return all(map(_is_off, switches or value.values()))
    return value is not True and value in (None, False, 0, 1, "none", "auto", "fp32")


def _flatten(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What is said in sections and lists, under names such as optimizer.params.betas.0."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flatten(each, f"{name}.{key}" if name else str(key))
    elif value != "auto":
        yield name, value


def _find(said: Mapping[str, Any], world_size: int, seq_len: int) -> Found:
    """What the file says of settings of ours; the last counts of two that are one."""
    flat = dict(_flatten(said, ""))
    if not any(name.startswith("scheduler.params.") for name in flat):
        flat.pop("scheduler.type", None)  # all of it was "auto"
    yield from _find_batches([flat.get(name) for name in _BATCHES], world_size, seq_len)
    for name in [each for each in _SAME if each in flat]:
        value = flat[name]
        if choices := _VALUES.get(_SAME[name]):  # in either case, as DeepSpeed takes them
            found = [ours for said, ours in choices.items() if said.lower() == str(value).lower()]
            if not found:
                raise ValueError(f"{name} is {value}; choose {', '.join(choices)}")
            [value] = found
        yield _SAME[name], value, name
    _check(flat)


def _find_batches(said: list[int | None], world_size: int, seq_len: int) -> Found:
    batch, micro, accumulated = said
    if micro and accumulated:
        product = micro * accumulated * world_size
        if batch not in (None, product):
            raise ValueError(
                f"train_batch_size is {batch}, but {micro} instances, {accumulated} times on "
                f"{world_size} ranks, are {product}; leave one of the three out"
            )
        batch = product
    elif batch and accumulated:
        micro = -(-batch // (accumulated * world_size))
    if batch:
        yield "global_batch", batch, _BATCHES[0]
    if micro and seq_len:
        yield "micro_tokens", micro * seq_len, f"{_BATCHES[1]}, {micro} of {seq_len} tokens"


def _check(flat: Mapping[str, Any]) -> None:
    """Refuses updates and schedules that are others here."""
    kind = str(flat.get("optimizer.type"))
    is_muon = kind.lower() == "muon"
    for name, value in flat.items():
        section, _, leaf = name.rpartition(".")
        if leaf == "adam_w_mode" and kind.lower() == "adam" and value is False:
            raise ValueError(f"{name} is false; weight decay is decoupled here")
        is_free = leaf in ("torch_adam", "fused", "foreach", "adam_w_mode") or value is False
        is_free |= is_muon and (leaf, value) == ("momentum", 0.95)
        is_known = name in _SAME and leaf != ("lr" if is_muon else "adam_lr")
        if section == "optimizer.params" and not is_known and not is_free:
            is_rate = leaf in ("lr", "muon_lr")  # of updates with another root mean square
            cure = ": Muon's updates have AdamW's size, give adam_lr" if is_rate else ""
            raise ValueError(f"{name} is {value}; {kind} has no such setting here{cure}")
        if leaf == "warmup_min_lr" and value:
            raise ValueError(f"{name} is {value}; a warm-up begins at 0")
    form = flat.get("scheduler.params.warmup_type", "log")
    if form == "log" and "scheduler.params.warmup_num_steps" in flat:
        raise ValueError('scheduler.params.warmup_type is log, as where it is unsaid; say "linear"')


def deepspeed_config(chosen: dict[str, Any], zero_stage: int, precision: str) -> dict[str, Any]:
    """DeepSpeed's settings: the person's choices and ours, at a zero_stage of 0 to 3.

    Gradients are summed and reduced in fp32 always: sums in bf16 were off by 0.84 % over 64 passes.
    """
    if precision == "bf16" and zero_stage == 0:
        raise ValueError(
            "DeepSpeed cannot sum bf16 gradients in fp32 with zero_stage 0; use zero_stage 1 or 2"
        )
    zero = {**chosen.get("zero_optimization", {}), "stage": zero_stage}
    if zero.get("overlap_comm") and zero_stage < 2:
        raise ValueError(f"overlap_comm works with zero_stage 2 and 3, not {zero_stage}")
    if zero_stage == 1 and precision == "fp32":
        zero.setdefault("contiguous_gradients", False)  # not two more copies of all gradients
    if zero_stage == 3:
        zero["sub_group_size"] = 2**62  # one group, so that clipping sees all gradients at once
    if zero_stage == 2 or (zero_stage == 1 and precision == "fp32"):
        # Ours comes with clipping, and theirs would be one more all-reduce.
        zero["compute_grad_norm"] = False
    return {
        **chosen,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # Updated at once: not one more copy of all gradients.
        "bf16": {"enabled": precision == "bf16", "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # The timer waits for the device before every forward pass.
        "timers": {"throughput": {"enabled": False}},
        # The loop decides where a step ends and what the loss is divided by; these are dummies.
        "managed_gradient_accumulation": False,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
    }


def bucket_elements(num_parameters: int, largest_tensor: int) -> int:
    """Elements of a bucket, an even number: all of a small model, at least the largest tensor."""
    size = max(largest_tensor, min(num_parameters, LARGEST_BUCKET))
    return size + size % 2
