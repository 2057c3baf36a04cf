"""Blocks from the cache of this machine, and from the store what is not there."""

import threading
import time
from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from trainer.stream.attempts import Attempts, ShardReadError, call_within
from trainer.stream.cache import CacheError, ShardCache
from trainer.stream.ranged_read import BlockRange, describe_range, fetch_blocks, split_blocks
from trainer.stream.read_settings import ReadSettings
from trainer.stream.source import ShardStore

STRETCH_BYTES = 4 * 2**20


def read_blocks_cached(
    dataset: ShardStore, blocks: BlockRange, settings: ReadSettings, stop: threading.Event
) -> list[memoryview]:
    """Reads the stored bytes of a range's blocks through the cache of settings.cache_dir, and checks each one's crc32.

    Raises:
        FileNotFoundError: The shard is not there.
        ShardReadError: Its bytes did not come, or are not those of the block table.
    """
    cache = open_cache(str(settings.cache_dir), settings.cache_bytes)
    deadline = time.monotonic() + settings.budget_seconds
    stretches = list(_stretches(blocks))
    asked_for = blocks._replace(first=stretches[0].first, stop=stretches[-1].stop)
    what = partial(describe_range, dataset, asked_for)
    attempts = Attempts(what, settings.timeout_seconds, settings.budget_seconds, stop)
    bodies: list[memoryview] = []
    for stretch in stretches:
        found = _read_stretch(cache, dataset, stretch, attempts, stop, deadline)
        bodies += found[max(blocks.first - stretch.first, 0) : blocks.stop - stretch.first]
    return bodies


def _read_stretch(
    cache: ShardCache,
    dataset: ShardStore,
    stretch: BlockRange,
    attempts: Attempts,
    stop: threading.Event,
    deadline: float,
) -> list[memoryview]:
    url = dataset.locate(stretch.shard.name)
    try:
        return cache.read(
            f"{stretch.shard.sha256} {stretch.start_byte}-{stretch.stop_byte}",
            lambda data: split_blocks(data, stretch, url),
            # In a thread beside: this one holds a lock of the cache, which nobody else could go on with.
            lambda: fetch_blocks(dataset, stretch, attempts, call_within),
            stop,
            deadline - time.monotonic(),
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
