"""Blocks from the store, or from the cache of this machine where there is one.

May import the stdlib, numpy, pipeline.shards and this package.
"""

import threading
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from trainer.stream.cache import CacheError, ShardCache
from trainer.stream.ranged_read import (
    BlockRange,
    ReadSettings,
    ShardReadError,
    describe_range,
    fetch_blocks,
    split_blocks,
)
from trainer.stream.source import ShardStore

STRETCH_BYTES = 4 * 2**20


def read_blocks(
    dataset: ShardStore, blocks: BlockRange, settings: ReadSettings, stop: threading.Event
) -> list[memoryview]:
    """Reads the stored bytes of a range's blocks, from the cache where there is one, and checks each one's crc32.

    Raises:
        FileNotFoundError: The shard is not there.
        ShardReadError: Its bytes did not come, or are not those of the block table.
    """
    if settings.cache_dir is None:
        return fetch_blocks(dataset, blocks, settings, stop)[1]
    cache = open_cache(settings.cache_dir, settings.cache_bytes)
    bodies: list[memoryview] = []
    for stretch in _stretches(blocks):
        bodies += _read_stretch(cache, dataset, stretch, settings, stop)[
            max(blocks.first - stretch.first, 0) : blocks.stop - stretch.first
        ]
    return bodies


def _read_stretch(
    cache: ShardCache, dataset: ShardStore, stretch: BlockRange, settings: ReadSettings, stop: threading.Event
) -> list[memoryview]:
    url = dataset.locate(stretch.shard.name)
    try:
        return cache.read(
            f"{stretch.shard.sha256} {stretch.start_byte}-{stretch.stop_byte}",
            lambda data: split_blocks(data, stretch, url),
            lambda: fetch_blocks(dataset, stretch, settings, stop)[0],
            stop,
            settings.budget_seconds,
        )
    except CacheError as error:
        raise ShardReadError(f"{describe_range(dataset, stretch)}: {error}") from error


def _stretches(blocks: BlockRange) -> Iterator[BlockRange]:
    """What is cached together: the blocks that begin in the same STRETCH_BYTES of a shard, whoever wants which."""
    number = blocks.table.offset // STRETCH_BYTES
    for each in np.unique(number[blocks.first : blocks.stop]):
        first, stop = np.searchsorted(number, [each, each + 1])
        yield blocks._replace(first=int(first), stop=int(stop))


@lru_cache(maxsize=8)
def open_cache(folder: str, max_bytes: int) -> ShardCache:
    """The cache of a folder.

    Raises:
        ValueError: max_bytes is too small.
        CacheError: The folder cannot be written.
    """
    return ShardCache(folder, max_bytes)
