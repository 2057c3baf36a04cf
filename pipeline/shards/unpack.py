"""A stored block unpacked, and checked against the tables and the vocabulary."""

import numpy as np

from pipeline.shards.block import Array, Block, decode_block
from pipeline.shards.records import BlockTable, Shard


def unpack_block(
    body: bytes | memoryview,
    table: BlockTable,
    index: int,
    shard: Shard,
    vocab_size: int,
    where: str,
) -> Block:
    """A block of a shard out of its bytes; nothing in it points outside instance or vocabulary.

    A ValueError refuses what is no block of this shard, though its crc32 was right.
    """
    block = decode_block(body, where)
    instances, tokens = int(table.instances[index]), int(table.tokens[index])
    if (block.num_instances, block.num_tokens) != (instances, tokens):
        found = f"{block.num_instances} instances of {block.num_tokens} tokens"
        raise ValueError(f"{where}: {found}, the block table says {instances} of {tokens}")
    check_block(block, shard.seq_len, vocab_size, where)
    return block


def check_block(block: Block, seq_len: int, vocab_size: int, where: str) -> None:
    """Refuses a block of which something is too long or points outside; raises ValueError."""
    lengths = block.lengths
    if (longest := int(lengths.max(initial=0))) > seq_len:
        raise ValueError(
            f"{where}: an instance of {longest} tokens in a shard of seq_len {seq_len}"
        )
    _expect_below("token id", block.input_ids, vocab_size, block.offsets, where)
    _expect_below("masked_lm_id", block.masked_lm_ids, vocab_size, block.masked_offsets, where)
    limits = lengths.astype(np.uint16).repeat(block.masked_lengths)
    _expect_below(
        "masked_lm_position", block.masked_lm_positions, limits, block.masked_offsets, where
    )


def _expect_below(
    what: str, values: Array, limits: Array | int, offsets: Array, where: str
) -> None:
    """Names the first of the values that is not below its limit, and the instance it belongs to.

    Instance n holds values offsets[n] to offsets[n + 1] - 1; offsets are [N+1].
    """
    if isinstance(limits, int) and values.max(initial=0) < limits:  # 20 times as fast
        return
    if not np.any(is_wrong := values >= limits):
        return
    place = int(np.argmax(is_wrong))
    instance = int(np.searchsorted(offsets, place, side="right")) - 1
    limit = np.broadcast_to(limits, values.shape)[place]
    raise ValueError(
        f"{where}, instance {instance}: {what} {values[place]} should be below {limit};"
        " restore or rebuild the dataset"
    )
