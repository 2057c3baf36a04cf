"""Puts items together into batches by their sizes."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batch_by_size(
    items: Iterable[Item], size_of: Callable[[Item], int], least: int
) -> Iterator[list[Item]]:
    """Yields batches of consecutive items, lazily.

    Items are added to a batch until their sizes add up to `least` or more. The sizes of the last
    batch may add up to less.

    Args:
        items: The items.
        size_of: Returns the size of an item.
        least: The least sum of the sizes of a batch.
    """
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= least:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch
