"""How much memory a rank takes: the sizes that the trainer chooses, and their sum."""

LARGEST_BUCKET = 2**25
"""Elements that DeepSpeed reduces at once, 128 MiB in fp32; its default of 5e8 copies all gradients."""


def bucket_elements(num_parameters: int, largest_tensor: int) -> int:
    """Elements of a bucket: all there are in a small model, and never less than the largest tensor; even."""
    size = max(largest_tensor, min(num_parameters, LARGEST_BUCKET))
    return size + size % 2
