"""Consecutive blocks of a shard by one ranged read: timed, retried, checked. Complete or an error.

Stores do return short bodies, other bytes or nothing at all without an error, so nothing they return is believed:
the number of bytes is checked against the request, every block's crc32 against the block table, what it decodes to
against the table's counts, and ids and positions in it against what they are to point into.
"""

from typing import NamedTuple

import numpy as np

from pipeline.shards.arrow_stream import RecordBatch
from pipeline.shards.block import Array, Block, block_of_batch, checksum, read_batch
from pipeline.shards.manifest import BLOCKS_TABLE
from pipeline.shards.records import BlockTable, Shard
from pipeline.storage.faults import StorageError
from trainer.stream.attempts import Attempts, Caller, DamageError, retry
from trainer.stream.source import ShardStore


class BlockRange(NamedTuple):
    """Blocks first to stop - 1 of a shard."""

    shard: Shard
    table: BlockTable
    first: int
    stop: int

    @property
    def start_byte(self) -> int:
        """First byte in the tar file."""
        return int(self.table.offset[self.first])

    @property
    def stop_byte(self) -> int:
        """One past the last byte."""
        return int(self.table.offset[self.stop - 1] + self.table.size[self.stop - 1])


def fetch_blocks(
    dataset: ShardStore, blocks: BlockRange, attempts: Attempts, call: Caller
) -> tuple[bytes, list[memoryview]]:
    """A range's bytes from the store, and those of every block, whose crc32 is checked.

    Args:
        dataset: Where the shard is.
        blocks: Its blocks.
        attempts: At this range.
        call: Makes a request.

    Raises:
        FileNotFoundError: The shard is not there.
        ShardReadError: Its bytes did not come, or are not those of the block table.
    """
    url = dataset.locate(blocks.shard.name)

    def attempt(seconds: float) -> tuple[bytes, list[memoryview]]:
        data = call(seconds, lambda: dataset.read_bytes(blocks.shard.name, blocks.start_byte, blocks.stop_byte))
        return data, split_blocks(data, blocks, url)

    return retry(attempt, attempts)


def describe_range(dataset: ShardStore, blocks: BlockRange) -> str:
    """Where a range is, for messages."""
    places = f"blocks {blocks.first} to {blocks.stop - 1} (bytes {blocks.start_byte}-{blocks.stop_byte})"
    return f"{dataset.locate(blocks.shard.name)}, {places}"


def describe_table(dataset: ShardStore, shard: Shard) -> str:
    """Where a shard's block table is, for messages."""
    return f"{dataset.locate(shard.name)}, its rows of {BLOCKS_TABLE}"


def read_table(dataset: ShardStore, shard: Shard, attempts: Attempts, call: Caller) -> BlockTable:
    """Reads a shard's block table and checks that all its blocks but the last are full, which lookup relies on.

    Raises:
        FileNotFoundError: The file is not there.
        ShardReadError: The table did not come, or is damaged, or does not describe the shard.
    """

    def attempt(seconds: float) -> BlockTable:
        try:
            return call(seconds, lambda: dataset.blocks(shard, attempts=1))
        except StorageError:  # of a store that does not answer; a ValueError for people
            raise
        except ValueError as error:
            raise DamageError(str(error)) from error

    return retry(attempt, attempts)


def split_blocks(data: bytes, blocks: BlockRange, url: str) -> list[memoryview]:
    """The bytes of every block of a range, each checked against the block table."""
    table, every = blocks.table, slice(blocks.first, blocks.stop)
    begins, sizes = (table.offset[every] - blocks.start_byte).tolist(), table.size[every].tolist()
    view = memoryview(data)
    bodies = [view[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    found, expected = [checksum(body) for body in bodies], table.crc32[every].tolist()
    if found != expected:
        number = next(n for n, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
        where = f"{url}, block {blocks.first + number} at byte {table.offset[blocks.first + number]}"
        raise DamageError(
            f"{where}: crc32 of its {sizes[number]} bytes is {found[number]:08x}, not {expected[number]:08x}"
        )
    return bodies


def read_batch_checked(body: memoryview, table: BlockTable, index: int, where: str) -> RecordBatch:
    """Decompresses one block and compares its sizes with the table's.

    Raises:
        ValueError: It holds something else, though its crc32 was right.
    """
    batch = read_batch(body, where)
    counts, listed = tuple(batch.lengths[:2]), (int(table.instances[index]), int(table.tokens[index]))
    if counts != listed:
        raise ValueError(f"{where}: holds {counts} instances and tokens, the block table says {listed}")
    return batch


def check_block(batch: RecordBatch, shard: Shard, vocab_size: int, where: str) -> Block:
    """What a block's buffers hold, checked: nothing in it points outside its instance or the vocabulary.

    Raises:
        ValueError: It is no block of this shard, or training would look up what is not there.
    """
    block = block_of_batch(batch, where)
    lengths = np.diff(block.offsets)
    if (longest := int(lengths.max(initial=0))) > shard.seq_len:
        raise ValueError(f"{where}: an instance of {longest} tokens in a shard of seq_len {shard.seq_len}")
    _expect_below("token id", block.input_ids, vocab_size, block.offsets, where)
    _expect_below("masked_lm_id", block.masked_lm_ids, vocab_size, block.masked_offsets, where)
    limits = np.repeat(lengths, np.diff(block.masked_offsets))
    _expect_below("masked_lm_position", block.masked_lm_positions, limits, block.masked_offsets, where)
    return block


def _expect_below(what: str, values: Array, limits: Array | int, offsets: Array, where: str) -> None:
    """Names the first of the values, which belong to instances by these offsets [N+1], that is not below its limit."""
    if not np.any(is_wrong := values >= limits):
        return
    place = int(np.argmax(is_wrong))
    instance = int(np.searchsorted(offsets, place, side="right")) - 1
    limit = np.broadcast_to(limits, values.shape)[place]
    raise ValueError(
        f"{where}, instance {instance}: {what} {values[place]} should be below {limit}; run `python -m pipeline verify`"
        " on the dataset, and restore or rebuild it"
    )
