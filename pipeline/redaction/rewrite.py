"""Writes a shard anew without some of its instances.

The other instances keep their order, tokens and masks. Blocks are cut anew, because all blocks of a
shard but the last are full.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from pipeline.shards.block import Array, Block, block_instances, concatenate_blocks
from pipeline.shards.dataset import Dataset, read_blocks
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.shard_file import pack_shard

_READ_AT_ONCE = 8
"""How many blocks of a shard are read at the same time, each by one request."""


def rewrite_shard(dataset: Dataset, shard: Shard, rows: Array) -> tuple[bytes, Shard, BlockTable]:
    """Returns a shard of a dataset without some of its instances.

    Args:
        dataset: The dataset.
        shard: The shard, with the seal and the source_tokens that it shall have. Its other values
            are those of the dataset's table.
        rows: The instances to leave out, ascending, by their rows in the shard.

    Returns:
        tar: The bytes of the new tar file.
        shard: Its row of shards.parquet.
        table: Its rows of blocks.parquet.

    Raises:
        FileNotFoundError: The shard is missing.
        StorageError: The store failed in every attempt.
        ValueError: A block is damaged.
    """
    tar, packed, table = pack_shard(
        cut_blocks(_kept_blocks(dataset, shard, rows), block_instances(shard.seq_len)),
        shard.split,
        shard.seq_len,
        shard.pass_index,
        shard.name,
        dataset.manifest.special_ids["mask"],
        shard.seal,
    )
    return tar, dataclasses.replace(packed, source_tokens=shard.source_tokens), table


def _kept_blocks(dataset: Dataset, shard: Shard, rows: Array) -> Iterator[Block]:
    """Yields the blocks of a shard without the instances of some rows."""
    first = 0
    for block in read_blocks(dataset, shard, _READ_AT_ONCE):
        is_kept = np.ones(block.num_instances, np.bool_)
        places = rows[(rows >= first) & (rows < first + block.num_instances)] - first
        is_kept[places] = False
        first += block.num_instances
        yield block if is_kept.all() else keep_instances(block, is_kept)


def keep_instances(block: Block, is_kept: npt.NDArray[np.bool_]) -> Block:
    """Returns some instances of a block, in order, as a block.

    Args:
        block: A block of N instances, whose offsets begin with 0.
        is_kept: [N] whether each instance is in the result.
    """
    keeps_token = np.repeat(is_kept, block.lengths)
    keeps_masked = np.repeat(is_kept, block.masked_lengths)
    return Block(
        input_ids=block.input_ids[keeps_token],
        offsets=_offsets_of(block.lengths[is_kept]),
        segment_a_length=block.segment_a_length[is_kept],
        masked_lm_positions=block.masked_lm_positions[keeps_masked],
        masked_lm_ids=block.masked_lm_ids[keeps_masked],
        masked_offsets=_offsets_of(block.masked_lengths[is_kept]),
        is_random_next=block.is_random_next[is_kept],
        document_a=block.document_a[is_kept],
        document_b=block.document_b[is_kept],
    )


def _offsets_of(lengths: Array) -> Array:
    """Returns the offsets of lists of these lengths: [N + 1] int32, from 0."""
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])


def cut_blocks(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """Yields the instances of some blocks in blocks of `size`; the last one may be smaller.

    Args:
        blocks: At least one block. Each may have any number of instances.
        size: The number of instances of a full block.

    Yields:
        At least one block, which is empty if all the given blocks are.
    """
    rest: Block | None = None
    is_first = True
    for block in blocks:
        joined = block if rest is None else concatenate_blocks([rest, block])
        num_full = joined.num_instances // size
        for number in range(num_full):
            yield joined.slice(number * size, (number + 1) * size)
            is_first = False
        rest = joined.slice(num_full * size, joined.num_instances)
    assert rest is not None, "no blocks to cut"
    if rest.num_instances or is_first:
        yield rest
