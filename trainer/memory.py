"""Memory model, to be filled."""

LARGEST_BUCKET = 2**25


def bucket_elements(num_parameters: int, largest_tensor: int) -> int:
    size = max(largest_tensor, min(num_parameters, LARGEST_BUCKET))
    return size + size % 2
