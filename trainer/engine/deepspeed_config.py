"""Makes the settings that DeepSpeed is given, from the trainer's choices and a ds_config.json."""

from typing import Any

BUCKET_ELEMENTS = 2**24
"""The most elements whose gradients are sent together by default under ZeRO-0 to 2: 64 MiB.

Large messages use the whole wire. Small ones begin to travel earlier: the last bucket, which has
the embeddings, travels when the backward pass is over.
"""

MOST_ON_THE_WAY = 2
"""The most buckets that are on the way between ranks at the same time.

A rank keeps the memory of the sums that it sends until the bucket has arrived.
"""

LARGEST_BUCKET = 2**25
"""The most elements that DeepSpeed reduces at once by default under ZeRO-3: 128 MiB in fp32.

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
    if zero_stage in (1, 2):
        # For ZeRO-1 and 2 alike, DeepSpeed is set to its stage 2, of which only the partitioning is
        # used. trainer/engine/gradients.py sends the gradients, and our optimizer computes their
        # norm and skips bad steps.
        zero.update(stage=2, overlap_comm=False, contiguous_gradients=False)
        zero["compute_grad_norm"] = False
    if zero_stage == 3:
        # All weights in one group, so that clipping sees all gradients at once.
        zero["sub_group_size"] = 2**62
    return {
        **chosen,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": precision == "bf16", "check_grad_overflow": zero_stage == 3},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # DeepSpeed's timer of throughput would wait for the device before every forward pass.
        "timers": {"throughput": {"enabled": False}},
        # `train_step` decides when a step ends and what the loss is divided by, and our optimizer
        # clips gradients. DeepSpeed demands values for these keys. With the values below it does
        # none of this itself.
        "managed_gradient_accumulation": False,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
    }


def bucket_elements(num_parameters: int, largest_tensor: int) -> int:
    """Returns the default size, in elements, of the buckets that DeepSpeed reduces under ZeRO-3.

    A bucket has as many elements as the model, but at most `LARGEST_BUCKET`. It is never smaller
    than the largest tensor, even above `LARGEST_BUCKET`. The size is rounded up to an even number.

    Args:
        num_parameters: The number of elements that are trained.
        largest_tensor: The number of elements of the largest tensor that is trained.
    """
    size = max(largest_tensor, min(num_parameters, LARGEST_BUCKET))
    return size + size % 2
