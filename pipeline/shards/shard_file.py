"""A shard file from its blocks: a WebDataset tar of `NNNNNN.arrow` members, and its block table.

The tar is what `webdataset.TarWriter` would write, byte for byte; that library itself is not
imported, because it pulls torch in where there is one.
"""

import hashlib
import io
import tarfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.shards.block import (
    Block,
    block_digest,
    checksum,
    content_hash,
    count_block,
    encode_block,
)
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.seal import Seal


def pack_shard(
    blocks: Iterable[Block],
    split: str,
    seq_len: int,
    pass_index: int,
    name: str,
    mask_id: int,
    seal: Seal,
) -> tuple[bytes, Shard, BlockTable]:
    """The tar file's bytes, the shard's row and its block table."""
    stream = io.BytesIO()
    totals: Counter[str] = Counter()
    rows: list[tuple[int, int, int, int, int]] = []
    digests: list[bytes] = []
    for number, block in enumerate(blocks):
        data = encode_block(block)
        start = stream.tell() + tarfile.BLOCKSIZE
        rows.append((start, len(data), block.num_instances, block.num_tokens, checksum(data)))
        stream.write(pack_member(f"{number:06d}.arrow", data))
        digests.append(block_digest(block))
        totals.update(count_block(block, mask_id))
    stream.write(end_of_tar(stream.tell()))
    tar = stream.getvalue()
    offset, size, instances, tokens, crc32 = (
        np.array(column, np.int64) for column in zip(*rows, strict=True)
    )
    table = BlockTable(offset, size, instances, tokens, crc32.astype(np.uint32))
    hashes = hashlib.sha256(tar).hexdigest(), content_hash(digests), table.digest()
    place = split, seq_len, pass_index, name, len(tar)
    return tar, Shard(*place, *hashes, seal=seal, **dict[str, Any](totals)), table


def pack_member(name: str, data: bytes) -> bytes:
    """A file as a tar holds it: mode 0644, time and owner 0, no names."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return b"".join((member.tobuf(tarfile.PAX_FORMAT), data, bytes(-len(data) % tarfile.BLOCKSIZE)))


def end_of_tar(num_bytes: int) -> bytes:
    """What follows members of so many bytes: two empty blocks, and padding to a whole record."""
    num_empty = 2 * tarfile.BLOCKSIZE
    return bytes(num_empty + -(num_bytes + num_empty) % tarfile.RECORDSIZE)
