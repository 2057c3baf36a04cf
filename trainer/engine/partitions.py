"""Computes which part of each parameter a rank updates under ZeRO-1 and 2.

This file imports no torch, so that `plan` can use it.
"""

from collections.abc import Sequence

_ALIGNMENT = 2
"""DeepSpeed pads each bucket so that the number of elements of a rank's part is a multiple."""


def cut_sizes(sizes: Sequence[int], bucket_elements: int) -> list[range]:
    """Divides parameters among buckets, and returns the indices of the parameters of each bucket.

    Buckets are in the order in which they are sent, so the first bucket has the last parameters.

    Args:
        sizes: Number of elements of each parameter, in the model's order.
        bucket_elements: The most elements of a bucket. A parameter with more elements has a bucket
            of its own.
    """
    buckets = []
    end = len(sizes)
    num_elements = 0
    for index in reversed(range(len(sizes))):
        num_elements += sizes[index]
        if num_elements > bucket_elements and index + 1 < end:
            buckets.append(range(index + 1, end))
            end = index + 1
            num_elements = sizes[index]
    return [*buckets, range(end)] if sizes else []


def find_parts(sizes: Sequence[int], bucket_elements: int, ranks: int) -> list[dict[int, int]]:
    """Returns, for each parameter, how many of its elements each rank updates.

    DeepSpeed cuts each bucket into equal pieces, one for each rank, whatever the parameters in it.

    Args:
        sizes: Number of elements of each parameter, in the model's order.
        bucket_elements: The most elements of a bucket.
        ranks: Number of ranks.

    Returns:
        For each parameter, the number of elements by rank. Ranks that update none are left out, and
        the others are in the order in which their parts follow each other.
    """
    parts: list[dict[int, int]] = [{} for _ in sizes]
    for bucket in cut_sizes(sizes, bucket_elements):
        numel = sum(sizes[index] for index in bucket)
        piece = -(-numel // (ranks * _ALIGNMENT)) * _ALIGNMENT
        start = 0
        for index in bucket:
            end = start + sizes[index]
            for rank in range(start // piece, -(-end // piece)):
                first = max(start, rank * piece)
                parts[index][rank] = min(end, (rank + 1) * piece) - first
            start = end
    return parts
