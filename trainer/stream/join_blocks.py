"""Blocks that are wanted as few ranged reads: consecutive ones of a shard together, in order of need."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from pipeline.shards.records import BlockTable, Shard
from trainer.stream.ranged_read import BlockRange
from trainer.stream.read_threads import Read


class Wanted(NamedTuple):
    """A block to be read: its number among all, its shard and its place there."""

    number: int
    shard: int
    block: int


def join_blocks(
    wanted: Iterable[Wanted], shards: Sequence[Shard], table_of: Callable[[int], BlockTable], max_read_bytes: int
) -> list[Read]:
    """What reads the blocks; one read takes in the next block of its shard while it is not too long.

    Args:
        wanted: In order of need, none twice.
        shards: By the numbers in `wanted`.
        table_of: The block table of a shard.
        max_read_bytes: Of a read of more than one block at most.
    """
    reads: list[Read] = []
    endings: dict[tuple[int, int], Read] = {}
    for number, shard, block in wanted:
        read = endings.pop((shard, block), None)
        if read is None or not _fits(read.blocks, block, max_read_bytes):
            read = Read(BlockRange(shards[shard], table_of(shard), block, block), number, Future())
            reads.append(read)
        read.blocks = read.blocks._replace(stop=block + 1)
        endings[shard, block + 1] = read
    return reads


def _fits(blocks: BlockRange, last: int, max_read_bytes: int) -> bool:
    """Whether a range is not too long with another block at its end."""
    end = blocks.table.offset[last] + blocks.table.size[last]
    return bool(end - blocks.start_byte <= max_read_bytes)
