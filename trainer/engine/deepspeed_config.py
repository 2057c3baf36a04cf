"""Makes DeepSpeed's settings of the trainer's choices and a user's ds_config.json."""

from typing import Any

LARGEST_BUCKET = 2**25
"""Elements that DeepSpeed reduces at once, 128 MiB in fp32; its 5e8 copies all gradients."""


def deepspeed_config(chosen: dict[str, Any], zero_stage: int, precision: str) -> dict[str, Any]:
    """Returns DeepSpeed's settings.

    Gradients are always summed and reduced in fp32: sums in bf16 were off by about 1 % over 64
    passes.

    Args:
        chosen: The keys of a ds_config.json that are passed on (`passed_to_deepspeed`).
        zero_stage: The ZeRO stage, 0 to 3.
        precision: "bf16" or "fp32".

    Raises:
        ValueError: DeepSpeed does not support the combination.
    """
    if precision == "bf16" and zero_stage == 0:
        raise ValueError(
            "DeepSpeed cannot sum bf16 gradients in fp32 with zero_stage 0; use zero_stage 1 or 2"
        )
    zero = {**chosen.get("zero_optimization", {}), "stage": zero_stage}
    if zero_stage < 2:
        # Gradients are reduced once in a step, after all backward passes: nothing can overlap.
        zero["overlap_comm"] = False
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
