"""Decodes a stored block, and checks it against the block table and the manifest."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.shards.block import Array, Block, decode_block
from pipeline.shards.instance_kind import has_pairs
from pipeline.shards.records import BlockTable, Manifest, Shard


def unpack_block(
    body: bytes | memoryview,
    table: BlockTable,
    index: int,
    shard: Shard,
    manifest: Manifest,
    where: str,
) -> Block:
    """Returns a block of a shard, after checking that it is the block that the table describes.

    Args:
        body: The bytes of the block, whose crc32 has been checked.
        table: The shard's block table.
        index: The block's place in the table, from 0.
        shard: The shard.
        manifest: The manifest of the dataset.
        where: Shard and number of the block, for messages.

    Raises:
        ValueError: The bytes are not a block, the table says another number of instances or tokens,
            or the block breaks a rule of `check_block` or `check_segments`.
    """
    block = decode_block(body, where)
    instances = int(table.instances[index])
    tokens = int(table.tokens[index])
    if (block.num_instances, block.num_tokens) != (instances, tokens):
        found = f"{block.num_instances} instances of {block.num_tokens} tokens"
        raise ValueError(f"{where}: {found}, the block table says {instances} of {tokens}")
    check_block(block, shard.seq_len, manifest.vocab_size, where)
    check_segments(block, manifest.settings, where)
    return block


def check_block(block: Block, seq_len: int, vocab_size: int, where: str) -> None:
    """Checks that ids are in the vocabulary, and positions inside their instances.

    Args:
        block: A decoded block.
        seq_len: The most tokens that an instance may have.
        vocab_size: The size of the dataset's vocabulary.
        where: Shard and number of the block, for messages.

    Raises:
        ValueError: An instance is too long, or an id or a position is too large. The message names
            the first such value.
    """
    lengths = block.lengths
    longest = int(lengths.max(initial=0))
    if longest > seq_len:
        raise ValueError(
            f"{where}: an instance of {longest} tokens in a shard of seq_len {seq_len}"
        )
    _expect_below("token id", block.input_ids, vocab_size, block.offsets, where)
    _expect_below("masked_lm_id", block.masked_lm_ids, vocab_size, block.masked_offsets, where)
    limits = lengths.astype(np.uint16).repeat(block.masked_lengths)
    _expect_below(
        "masked_lm_position", block.masked_lm_positions, limits, block.masked_offsets, where
    )


def check_segments(block: Block, settings: Mapping[str, Any], where: str) -> None:
    """Checks that every instance has two segments, or every one has one, as the dataset says.

    Args:
        block: A decoded block.
        settings: The settings in the dataset's manifest.
        where: Shard and number of the block, for messages.

    Raises:
        ValueError: An instance has one segment in a dataset of pairs, or two in another dataset.
            The message names the first such instance.
    """
    are_pairs = has_pairs(settings)
    is_wrong = (block.segment_a_length < block.lengths) != are_pairs
    if not is_wrong.any():
        return
    found = "one segment, expected two" if are_pairs else "two segments, expected one"
    raise ValueError(
        f"{where}, instance {int(np.argmax(is_wrong))}: {found}; restore or rebuild the dataset"
    )


def _expect_below(
    what: str, values: Array, limits: Array | int, offsets: Array, where: str
) -> None:
    """Checks that every value is below its limit.

    Args:
        what: Names a value in messages.
        values: [V] whole numbers.
        limits: The limit of all values, or [V] the limit of each.
        offsets: [N + 1]; instance n has the values offsets[n] to offsets[n + 1] - 1.
        where: Shard and number of the block, for messages.

    Raises:
        ValueError: A value is too large. The message names the first such value and its instance.
    """
    if isinstance(limits, int) and values.max(initial=0) < limits:  # usual, and 20 times as fast
        return
    is_wrong = values >= limits
    if not np.any(is_wrong):
        return
    place = int(np.argmax(is_wrong))
    instance = int(np.searchsorted(offsets, place, side="right")) - 1
    limit = np.broadcast_to(limits, values.shape)[place]
    raise ValueError(
        f"{where}, instance {instance}: {what} {values[place]} should be below {limit};"
        " restore or rebuild the dataset"
    )
