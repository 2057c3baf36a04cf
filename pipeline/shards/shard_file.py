"""Packs blocks into a shard file: a WebDataset tar with members `NNNNNN.arrow`.

The tar has the bytes that `webdataset.TarWriter` would write. That library is not imported, because
it imports torch if torch is installed.
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

_MODE_AND_OWNER = b"0000644\0" + 2 * b"0000000\0"
_TIME = b"00000000000\0"
_REST_OF_HEADER = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
_SUM_OF_OTHERS = sum(_MODE_AND_OWNER + _TIME + _REST_OF_HEADER) + 8 * ord(" ")
"""Sum of all bytes of a header but name and size, where its checksum counts as 8 blanks."""


def pack_shard(
    blocks: Iterable[Block],
    split: str,
    seq_len: int,
    pass_index: int,
    name: str,
    mask_id: int,
    seal: Seal,
) -> tuple[bytes, Shard, BlockTable]:
    """Packs blocks into a tar file, held in memory.

    Args:
        blocks: The blocks of the shard, at least one. All but the last are full.
        split: "train" or "validation".
        seq_len: The most tokens of an instance.
        pass_index: The number of the pass, from 0.
        name: The shard's path, relative to the dataset.
        mask_id: The id of [MASK].
        seal: The seal of the bucket's documents.

    Returns:
        tar: The bytes of the tar file.
        shard: The shard's row of shards.parquet, without source_tokens.
        table: Its rows of blocks.parquet.
    """
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
    counts: dict[str, Any] = dict(totals)
    shard = Shard(
        split=split,
        seq_len=seq_len,
        pass_index=pass_index,
        name=name,
        num_bytes=len(tar),
        sha256=hashlib.sha256(tar).hexdigest(),
        content_hash=content_hash(digests),
        blocks_hash=table.digest(),
        seal=seal,
        **counts,
    )
    return tar, shard, table


def pack_member(name: str, data: bytes) -> bytes:
    """Returns a file as a member of a tar: header, data and padding.

    The header has mode 0644, time 0, owner 0 and no names of owners, so equal files give equal
    bytes.
    """
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return b"".join((_make_header(name, len(data)), data, padding))


def size_of_member(name: str, num_bytes: int) -> int:
    """Returns how many bytes `pack_member` makes of a file of `num_bytes`, without packing it."""
    is_short = _fits_into_one_block(name, num_bytes)
    header_bytes = tarfile.BLOCKSIZE if is_short else len(_make_header(name, num_bytes))
    return header_bytes + num_bytes + -num_bytes % tarfile.BLOCKSIZE


def _make_header(name: str, num_bytes: int) -> bytes:
    """Returns the header that tarfile makes for a file, in the format of POSIX.1-2001 (pax).

    A header of one block is made here and not by tarfile. For a small file, tarfile takes longer to
    make the header than everything else takes together.
    """
    if not _fits_into_one_block(name, num_bytes):
        member = tarfile.TarInfo(name)
        member.size = num_bytes
        return member.tobuf(tarfile.PAX_FORMAT)
    size = b"%011o\0" % num_bytes
    checksum = _SUM_OF_OTHERS + sum(name.encode()) + sum(size)
    fields = (name.encode().ljust(100, b"\0"), _MODE_AND_OWNER, size, _TIME, b"%06o\0 " % checksum)
    return b"".join((*fields, _REST_OF_HEADER))


def _fits_into_one_block(name: str, num_bytes: int) -> bool:
    """Returns whether the header of a file is one block of 512 bytes.

    It is if the name has at most 100 ASCII characters, and the file less than 8 GiB.
    """
    return len(name) <= 100 and name.isascii() and num_bytes < 8**11


def end_of_tar(num_bytes: int) -> bytes:
    """Returns the end of a tar: two empty blocks, and padding to a whole record of 10 KiB.

    Args:
        num_bytes: The bytes of all members before it.
    """
    num_empty = 2 * tarfile.BLOCKSIZE
    return bytes(num_empty + -(num_bytes + num_empty) % tarfile.RECORDSIZE)
