"""DeepSpeed's settings: what a person may choose, and what the trainer writes. Without torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What a settings file for DeepSpeed may say; the trainer writes everything else.
CHOOSABLE = (
    "zero_optimization",
    "comms_logger",
    "flops_profiler",
    "wall_clock_breakdown",
    "memory_breakdown",
)
CHOOSABLE_ZERO = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "use_multi_rank_bucket_allreduce",
    "round_robin_gradients",
    "parameter_alignment",
)


LARGEST_BUCKET = 2**25
"""Elements that DeepSpeed reduces at once, 128 MiB in fp32; its 5e8 copies all gradients."""


def read_deepspeed_file(path: str | None) -> dict[str, Any]:
    """The choices in a DeepSpeed settings file; none without a file."""
    if path is None:
        return {}
    try:
        chosen = json.loads(Path(path).read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    _refuse_unknown(chosen, CHOOSABLE, path)
    _refuse_unknown(
        chosen.get("zero_optimization", {}), CHOOSABLE_ZERO, f"{path}: zero_optimization"
    )
    return dict(chosen)


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
    if zero.get("overlap_comm") and zero_stage != 2:
        raise ValueError(f"overlap_comm works with zero_stage 2 only, not {zero_stage}")
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


def _refuse_unknown(chosen: dict[str, Any], choices: Sequence[str], where: str) -> None:
    unknown = sorted(set(chosen) - set(choices))
    if unknown:
        raise ValueError(
            f"{where} sets {', '.join(unknown)}, which the trainer decides from the run's own settings (zero_stage, "
            f"precision, phases, optimizer, micro_tokens); the file may hold {', '.join(choices)}"
        )
