"""Computes self-attention over packed sequences, by one of two back ends.

"padded" is torch's scaled_dot_product_attention, which runs on any device. "flash" is the kernel
that torch's varlen_attn calls, for fp16 and bf16 on CUDA GPUs of capability 8.0 or later. "auto"
chooses flash if it can run, and otherwise padded.

B sequences, T packed tokens, S length, A heads, D head size, P positions of the padded buffer.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.model.packed_inputs import PackedInputs, PaddedLayout


def attention(
    q_TAD: Tensor,
    k_TAD: Tensor,
    v_TAD: Tensor,
    inputs: PackedInputs,
    dropout_p: float,
    backend: str,
    is_causal: bool = False,
) -> Tensor:
    """Computes softmax(q k / sqrt(D)) v in each sequence and head.

    A token attends only to tokens of its own sequence. The result is [T, A, D].

    Args:
        q_TAD: Queries.
        k_TAD: Keys.
        v_TAD: Values.
        inputs: The packed sequences.
        dropout_p: Dropout on the attention probabilities.
        backend: "auto", "padded" or "flash".
        is_causal: Whether a token sees only itself and the tokens before it.
    """
    if q_TAD.shape[0] == 0:
        # Empty, but computed from all three: the backward pass must reach every parameter.
        return q_TAD + k_TAD + v_TAD
    if choose_backend(backend, q_TAD.device, q_TAD.dtype) == "padded":
        return _padded_attention((q_TAD, k_TAD, v_TAD), inputs.padded, dropout_p, is_causal)
    # torch's varlen_attn calls the same kernel, but has no dropout.
    outputs = torch.ops.aten._flash_attention_forward(
        q_TAD,
        k_TAD,
        v_TAD,
        inputs.cu_seqlens,
        inputs.cu_seqlens,
        inputs.max_seqlen,
        inputs.max_seqlen,
        dropout_p,
        is_causal,
        return_debug_mask=False,
    )
    context_TAD: Tensor = outputs[0]
    return context_TAD


def choose_backend(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    """Returns the back end that will run: "padded" or "flash".

    Args:
        backend: "auto", "padded" or "flash".
        device: The device of the tensors.
        dtype: The type of queries, keys and values.

    Raises:
        ValueError: `backend` is "flash", which cannot run on this device with this type.
    """
    has_flash = (
        device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )
    if backend == "flash" and not has_flash:
        raise ValueError(
            f"attention_backend {backend} needs fp16 or bf16 on a CUDA device of compute capability"
            f" 8.0 or later, found {dtype} on {device}; choose attention_backend padded or auto"
        )
    return "flash" if has_flash and backend != "padded" else "padded"


def _padded_attention(
    qkv_TAD: tuple[Tensor, ...], layout: PaddedLayout, dropout_p: float, is_causal: bool
) -> Tensor:
    """Computes the result of `attention` by torch's kernel for padded sequences.

    Packed tokens are copied into padded rows. The rows of one padded length are computed together,
    and the results of real tokens are copied back.

    Args:
        qkv_TAD: Queries, keys and values, each [T, A, D].
        layout: Where each token is in the padded rows.
        dropout_p: Dropout on the attention probabilities.
        is_causal: Whether a token sees only itself and the tokens before it.
    """
    dtype = qkv_TAD[0].dtype
    if qkv_TAD[0].device.type == "cpu":
        # In bf16 torch's kernel for CPUs takes two to four times as long as in fp32.
        qkv_TAD = tuple(x_TAD.float() for x_TAD in qkv_TAD)
    buffer_PAD = qkv_TAD[0].new_zeros(layout.num_positions, *qkv_TAD[0].shape[1:])
    sizes = [group.num_rows * group.row_length for group in layout.groups]
    # One split, as the gradient of a slice is a buffer of its own for each group.
    q_parts, k_parts, v_parts = (
        torch.split(buffer_PAD.index_copy(0, layout.positions, x_TAD), sizes) for x_TAD in qkv_TAD
    )
    contexts = []
    for group, *parts in zip(layout.groups, q_parts, k_parts, v_parts, strict=True):
        q_BASD, k_BASD, v_BASD = (
            part.view(group.num_rows, group.row_length, *part.shape[1:]).transpose(1, 2)
            for part in parts
        )
        # Padding is at the end of a row. If no token looks ahead, no real one sees it.
        mask = None if is_causal else group.key_mask
        attend = F.scaled_dot_product_attention
        context_BASD = attend(q_BASD, k_BASD, v_BASD, mask, dropout_p, is_causal)
        contexts.append(context_BASD.transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts).index_select(0, layout.positions).to(dtype)
