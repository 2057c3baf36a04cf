"""DeepSpeed's settings: what a ds_config.json says, and what the trainer writes."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST_BUCKET = 2**25
"""Elements that DeepSpeed reduces at once, 128 MiB in fp32; its 5e8 copies all gradients."""
# Keys of the file and of its zero_optimization: what DeepSpeed is given as it stands there, what
# becomes a setting of the run, and what the trainer decides, as it changes nothing that is trained.
_PASSED = re.compile(
    "comms_logger|flops_profiler|wall_clock_breakdown|memory_breakdown|reduce_bucket_size"
    "|allgather_bucket_size|reduce_scatter|overlap_comm|contiguous_gradients|parameter_alignment"
    "|use_multi_rank_bucket_allreduce|round_robin_gradients|stage3_(max|prefetch|param)_.*"
)
_MAPPED = re.compile(
    "zero_optimization|stage|bf16|gradient_clipping|optimizer|scheduler|train_batch_size"
    "|train_micro_batch_size_per_gpu|gradient_accumulation_steps"
)
_DECIDED = re.compile(
    "steps_per_print|zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|sub_group_size"
    "|allgather_partitions|load_from_fp32_weights|elastic_checkpoint|stage3_gather_.*"
)
_REASONS = {
    "fp16|amp|torch_autocast": "there is no loss scaling here; use bf16",
    "offload_.*|cpu_offload.*|aio": "what ZeRO partitions stays on its device",
    "communication_data_type|data_types|prescale_.*|gradient_predivide_factor"
    "|zero_quantized_.*|zero_hpz_.*|mics_.*": "gradients are summed and reduced in fp32, whole",
    "curriculum_learning|data_.*": "the dataset decides which instance comes when",
    "progressive_layer_drop|eigenvalue|quantize_training|compression_training|sparse_.*"
    "|hybrid_engine": "the model is BERT as it stands",
    "tensor_parallel|sequence_parallel_size|pipeline|moe": "ranks share the data alone",
    "activation_checkpointing": "--activation_checkpointing computes layers again",
    "tensorboard|wandb|csv_monitor|comet": "TensorBoard's curves are written, and --wandb has others",
    "checkpoint|elasticity": "checkpoints are ours, and continue on any number of ranks",
    "autotuning": "`plan` says what fits",
    ".*": "it is not known here",
}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "lamb": "lamb"}
_OF_OPTIMIZER = {
    "lr": "peak_lr",
    "eps": "optimizer.eps",
    "weight_decay": "optimizer.weight_decay",
    "bias_correction": "optimizer.bias_correction",
    "max_grad_norm": "optimizer.max_grad_norm",
}
_OF_SCHEDULE = {
    "warmup_num_steps": "warmup_steps",
    "warmup_max_lr": "peak_lr",
    "total_num_steps": "steps",
}
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_OF_PHASES = ("global_batch", "peak_lr", "steps", "warmup_steps", "decay_power", "end_lr")

Found = Iterator[tuple[str, Any, str]]  # our key, the value, the file's key


def read_deepspeed_file(path: str | None) -> dict[str, Any]:
    """What DeepSpeed is given of a ds_config.json; nothing without a file."""
    said = _read(path) if path is not None else {}
    zero = {key: each for key, each in said.get("zero_optimization", {}).items() if _passes(key)}
    passed = {key: each for key, each in said.items() if _passes(key)}
    return passed | ({"zero_optimization": zero} if zero else {})


def _passes(key: str) -> bool:
    return _PASSED.fullmatch(key) is not None


def settings_of_file(
    path: str, in_files: Mapping[str, Any], flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings that a ds_config.json gives where neither a flag nor a file of `--config` does.

    What it says otherwise than such a file is refused; a flag is stronger than either.
    """
    count = in_files["phases"].value if "phases" in in_files else 1
    phases = [f"phases[{index}]." for index in range(count)]
    lengths = [in_files[f"{each}seq_len"].value for each in phases if f"{each}seq_len" in in_files]
    world_size = os.environ.get("WORLD_SIZE", "1")
    if "world_size" in flags:  # of a plan
        world_size = flags["world_size"].value
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
                faults.append(
                    f"{where}{target} is {found}, {path} says {value} by {name}; give --{key} to choose"
                )
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
    """The file without what is "auto"; refuses what has no meaning here."""
    try:
        said = json.loads(Path(path).read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    zero = said.get("zero_optimization", {}) if isinstance(said, dict) else None
    if isinstance(zero, bool):
        zero = {"stage": int(zero)}
    if not isinstance(zero, dict):
        raise ValueError(f"{path}: found {str(said)[:60]}, expected the settings of DeepSpeed")  # noqa: TRY004
    faults = []
    for name, value in {**said, **{f"zero_optimization.{key}": zero[key] for key in zero}}.items():
        leaf = name.removeprefix("zero_optimization.")
        if any(known.fullmatch(leaf) for known in (_PASSED, _MAPPED, _DECIDED)):
            continue
        known, reason = next(each for each in _REASONS.items() if re.fullmatch(each[0], leaf))
        if known == ".*" or not _is_off(value):
            faults.append(f"{path} sets {name}: {reason}")
    if faults:
        raise ValueError("\n".join(faults))
    return dict(_without_auto({**said, "zero_optimization": zero}))


def _is_off(value: Any) -> bool:
    """Whether a section does nothing, or says what is so here in any case."""
    if isinstance(value, dict):
        switches = [value[key] for key in ("enabled", "device") if key in value]
        return all(map(_is_off, switches or value.values()))
    return value is not True and value in (None, False, 0, 1, "none", "auto", "fp32")


def _without_auto(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_auto(each) for name, each in value.items() if each != "auto"}


def _find(said: Mapping[str, Any], world_size: int, seq_len: int) -> Found:
    """What the file says of settings of ours; the last counts of two that are one."""
    if "stage" in said["zero_optimization"]:
        yield "zero_stage", said["zero_optimization"]["stage"], "zero_optimization.stage"
    if "enabled" in said.get("bf16", {}):
        yield "precision", "bf16" if said["bf16"]["enabled"] else "fp32", "bf16.enabled"
    if "gradient_clipping" in said:
        yield "optimizer.max_grad_norm", said["gradient_clipping"], "gradient_clipping"
    yield from _find_batches([said.get(name) for name in _BATCHES], world_size, seq_len)
    yield from _find_optimizer(said.get("optimizer", {}))
    if said.get("scheduler"):
        yield from _find_schedule(said["scheduler"])


def _find_batches(said: list[int | None], world_size: int, seq_len: int) -> Found:
    batch, micro, accumulated = said
    if micro and accumulated:
        product = micro * accumulated * world_size
        if batch not in (None, product):
            raise ValueError(
                f"train_batch_size is {batch}, but {micro} instances, {accumulated} times on {world_size} ranks, are "
                f"{product}; leave one of the three out"
            )
        batch = product
    elif batch and accumulated:
        micro = -(-batch // (accumulated * world_size))
    if batch:
        yield "global_batch", batch, _BATCHES[0]
    if micro and seq_len:
        yield "micro_tokens", micro * seq_len, f"{_BATCHES[1]}, {micro} of {seq_len} tokens"


def _find_optimizer(said: Mapping[str, Any]) -> Found:
    kind, params = said.get("type"), dict(said.get("params", {}))
    if kind is not None and str(kind).lower() not in _OPTIMIZERS:
        raise ValueError(f"optimizer.type is {kind}; choose AdamW or Lamb")
    if kind is not None:
        yield "optimizer.name", _OPTIMIZERS[str(kind).lower()], "optimizer.type"
    if params.pop("adam_w_mode", True) is False and str(kind).lower() == "adam":
        raise ValueError("optimizer.params.adam_w_mode is false; weight decay is decoupled here")
    for name, value in zip(("beta1", "beta2"), params.pop("betas", ()), strict=False):
        yield f"optimizer.{name}", value, "optimizer.params.betas"
    for name, value in params.items():
        if name in _OF_OPTIMIZER:
            yield _OF_OPTIMIZER[name], value, f"optimizer.params.{name}"
        elif name not in ("torch_adam", "fused", "foreach") and value is not False:
            raise ValueError(f"optimizer.params.{name} is {value}; {kind} has no such setting here")


def _find_schedule(said: Mapping[str, Any]) -> Found:
    """A linear warm-up, and a linear decay or none; rates come a step before DeepSpeed's."""
    kind, params = said.get("type"), said.get("params", {})
    powers = {"WarmupLR": 0.0, "WarmupDecayLR": 1.0, "WarmupCosineLR": 0.0}
    if kind not in powers:
        raise ValueError(f"scheduler.type is {kind}; choose {', '.join(powers)}")
    if kind == "WarmupCosineLR" and params.get("cos_min_ratio") != 1:
        raise ValueError("scheduler.type is WarmupCosineLR; the decay here is a power, no cosine")
    for name in ("warmup_min_lr", "warmup_min_ratio"):
        if params.get(name):
            raise ValueError(f"scheduler.params.{name} is {params[name]}; a warm-up begins at 0")
    if "warmup_num_steps" in params and params.get("warmup_type", "log") != "linear":
        raise ValueError('scheduler.params.warmup_type is log, as where it is unsaid; say "linear"')
    for name, ours in _OF_SCHEDULE.items():
        if name in params:
            yield ours, params[name], f"scheduler.params.{name}"
    if params:
        yield "decay_power", powers[kind], "scheduler.type"


def deepspeed_config(chosen: dict[str, Any], zero_stage: int, precision: str) -> dict[str, Any]:
    """DeepSpeed's settings: the person's choices and ours, at a zero_stage of 0 to 3.

    Gradients are summed and reduced in fp32 in bf16 too, because bf16 sums, which are DeepSpeed's
    default, were off by 0.84 % over 64 micro-batches.
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
