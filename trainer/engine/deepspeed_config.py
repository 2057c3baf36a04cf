"""Makes the settings that DeepSpeed is given, from the trainer's choices and a ds_config.json."""

from typing import Any

LARGEST_BUCKET = 2**25
"""The most elements that DeepSpeed reduces at once by default: 128 MiB in fp32.

DeepSpeed's own default, 5e8 elements, would hold a copy of all gradients of most models.
"""


def deepspeed_config(chosen: dict[str, Any], zero_stage: int, precision: str) -> dict[str, Any]:
    """Returns the settings that DeepSpeed is started with.

    Gradients are always summed over micro-batches, and reduced over ranks, in fp32: sums in bf16
    were off by about 1 % over 64 backward passes.

    Args:
        chosen: The values of a user's ds_config.json that are passed on to DeepSpeed, nested in
            sections, from `passed_to_deepspeed`.
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
        # Contiguous gradients would take two more copies of all gradients.
        zero.setdefault("contiguous_gradients", False)
    if zero_stage == 3:
        # All weights in one group, so that clipping sees all gradients at once.
        zero["sub_group_size"] = 2**62
    if zero_stage == 2 or (zero_stage == 1 and precision == "fp32"):
        # Our optimizer computes the norm for clipping; DeepSpeed's would be one more all-reduce.
        zero["compute_grad_norm"] = False
    return {
        **chosen,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # Adding bf16 gradients to their fp32 sums at once saves one more copy of all gradients.
        "bf16": {"enabled": precision == "bf16", "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # The timer would wait for the device before every forward pass.
        "timers": {"throughput": {"enabled": False}},
        # train_step decides when a step ends and what the loss is divided by, and the optimizer
        # clips. DeepSpeed demands values for these keys; the ones given switch its own parts off.
        "managed_gradient_accumulation": False,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
    }


def bucket_elements(num_parameters: int, largest_tensor: int) -> int:
    """Returns how many elements DeepSpeed reduces at once by default, an even number.

    A bucket holds all elements of a small model, at most `LARGEST_BUCKET` of a larger one, but
    always the largest tensor.

    Args:
        num_parameters: The number of elements that are trained.
        largest_tensor: The number of elements of the largest tensor that is trained.
    """
    size = max(largest_tensor, min(num_parameters, LARGEST_BUCKET))
    return size + size % 2
