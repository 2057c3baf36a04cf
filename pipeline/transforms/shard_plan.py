"""Decides which samples go into which shard, from the hashes and sizes of all samples.

Samples are ordered by the hashes of their keys, and a shard holds a range of hashes. No worker sees
the sizes of all samples. They are divided in two levels, and each level is planned by itself:

1. The hashes are divided into equal ranges. What a sample contributes to the plan is a `size row`
   of 28 bytes, and one worker gets all size rows of a range (`plan_range`). It divides them into
   pieces that fit into a shard. A piece is a whole cell, which is a 65,536th of all hashes, or a
   part of a cell that is too large for a shard.
2. One worker gets the pieces, of which there are at most 65,536 and two for each shard
   (`plan_shards`). It joins neighbours while they fit into one shard.

So a shard is never too large, and the plan depends on the samples alone.

If the number of shards is given, no pieces are joined. The ranges are that many, and each of them
becomes a shard, or several if it is too large for one. A sample's range is then known without the
plan.
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple
from zlib import crc32

from pipeline.shards.shard_file import end_of_tar
from pipeline.storage.folder import Folder
from pipeline.transforms.encoded_samples import HASH_BYTES

DEFAULT_NAME = "shard"
MANIFEST = "manifest.json"
WIDS_INDEX = "shards.json"
_CELL_BYTES = 2  # samples whose hashes begin with the same bytes are in the same cell
_NUM_RANGES = 4096
"""Number of ranges. A worker plans one at a time, so it holds a 4,096th of all size rows."""
_SIZE_ROW = struct.Struct(">16sQI")  # big-endian, so that packed rows have the order of samples


class Tally(NamedTuple):
    """The size of a set of samples.

    Attributes:
        samples: Number of samples.
        num_bytes: Bytes that their members take in a tar, with headers and padding but without the
            zero blocks that end the tar.
        checksum: Sum of the crc32 of the encoded samples.
    """

    samples: int = 0
    num_bytes: int = 0
    checksum: int = 0

    def add(self, other: "Tally") -> "Tally":
        """Returns the tally of both sets together."""
        return Tally(
            self.samples + other.samples,
            self.num_bytes + other.num_bytes,
            self.checksum + other.checksum,
        )


class Piece(NamedTuple):
    """Samples that are not divided further, because they fit into one shard.

    Attributes:
        first: The smallest hash among them.
        tally: Their size.
    """

    first: bytes
    tally: Tally


class Plan(NamedTuple):
    """The division of all samples into shards.

    Attributes:
        firsts: The smallest hash in each shard, ascending.
        expected: What each shard must hold.
    """

    firsts: tuple[bytes, ...] = ()
    expected: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class ShardRule:
    """Decides where the shards `NAME-NNNNNN.tar` are written, and how large they may be.

    Attributes:
        folder: The folder of the shards.
        name: The beginning of their names.
        max_bytes: The largest size of a shard.
        max_samples: The most samples of a shard.
        num_shards: The number of ranges that become shards; None to join pieces.
        rejects: Whether of several samples with one key all but the first are left out. Otherwise
            they end the job.
    """

    folder: Folder
    name: str
    max_bytes: int
    max_samples: int
    num_shards: int | None = None
    rejects: bool = False

    @property
    def manifest(self) -> str:
        """Returns the name of the file that lists the samples, bytes and sha256 of each shard."""
        return self._index_name(MANIFEST)

    @property
    def wids_index(self) -> str:
        """Returns the name of the index that wids reads."""
        return self._index_name(WIDS_INDEX)

    def _index_name(self, name: str) -> str:
        """Returns the file name of an index of this dataset.

        It begins with the dataset's name, so that several datasets can share a folder. The dataset
        with the default name has plain names.
        """
        return name if self.name == DEFAULT_NAME else f"{self.name}-{name}"

    def shard_name(self, number: int) -> str:
        """Returns the name of a shard's file."""
        return f"{self.name}-{number:06d}.tar"

    def is_shard(self, name: str) -> bool:
        """Returns whether a file's name is a shard's name of this dataset."""
        return re.fullmatch(rf"{re.escape(self.name)}-\d{{6,}}\.tar", name) is not None

    def is_own(self, name: str) -> bool:
        """Returns whether a file is a shard or an index of this dataset."""
        return name in (self.manifest, self.wids_index) or self.is_shard(name)

    def holds(self, tally: Tally) -> bool:
        """Returns whether a shard with this many samples and bytes is within the limits."""
        num_bytes = tally.num_bytes + len(end_of_tar(tally.num_bytes))
        return num_bytes <= self.max_bytes and tally.samples <= self.max_samples

    def range_of(self, encoded: bytes) -> int:
        """Returns the number of the range that the hash at the start of these bytes is in."""
        number = int.from_bytes(encoded[:HASH_BYTES], "big")
        return number * (self.num_shards or _NUM_RANGES) >> 8 * HASH_BYTES

    def start_of(self, number: int) -> bytes:
        """Returns the smallest hash of the range of a number; `num_shards` must be given."""
        assert self.num_shards, "ranges are shards"
        start = -(-(number << 8 * HASH_BYTES) // self.num_shards)  # rounded up
        return start.to_bytes(HASH_BYTES + 1, "big")[1:]


def to_size_row(encoded: bytes, rule: ShardRule) -> tuple[int, bytes]:
    """Returns the range of a sample, and what the plan needs of it.

    Returns:
        The number of the range, and the size row: the hash of the sample's key (16 bytes), the
        sample's size in a tar (8) and its crc32 (4).
    """
    row = _SIZE_ROW.pack(encoded[:HASH_BYTES], len(encoded) - HASH_BYTES, crc32(encoded))
    return rule.range_of(encoded), row


def plan_range(group: tuple[int, Iterable[bytes]], rule: ShardRule) -> list[Piece]:
    """Divides the samples of a range into pieces that fit into a shard.

    Args:
        group: The number of the range, and its size rows in any order.
        rule: How large a shard may be.

    Returns:
        The pieces, in the order of their hashes. Samples with one key are never divided, so that
        they are found when they are written.
    """
    _, given = group
    rows: Iterable[bytes] = sorted(given)
    if rule.rejects:
        rows = (next(same) for _, same in groupby(rows, key=_hash_of))
    if rule.num_shards:
        return _divide([*rows], rule)
    cells = groupby(rows, key=lambda row: row[:_CELL_BYTES])
    return [piece for _, cell in cells for piece in _divide([*cell], rule)]


def _hash_of(row: bytes) -> bytes:
    """Returns the hash of a key that is at the start of these bytes."""
    return row[:HASH_BYTES]


def _divide(rows: Sequence[bytes], rule: ShardRule) -> list[Piece]:
    """Returns one piece of all these samples, or several if they do not fit into one shard."""
    whole = _make_piece(rows)
    if rule.holds(whole.tally):
        return [whole]
    return _join((_make_piece([*same]) for _, same in groupby(rows, key=_hash_of)), rule)


def _make_piece(rows: Sequence[bytes]) -> Piece:
    """Returns one piece of the samples of these size rows, of which there is at least one."""
    num_bytes = 0
    checksum = 0
    for row in rows:
        _, row_bytes, row_checksum = _SIZE_ROW.unpack(row)
        num_bytes += row_bytes
        checksum += row_checksum
    return Piece(_hash_of(rows[0]), Tally(len(rows), num_bytes, checksum))


def _join(pieces: Iterable[Piece], rule: ShardRule) -> list[Piece]:
    """Joins neighbours, from the first to the last, while they fit into one shard."""
    joined: list[Piece] = []
    for piece in pieces:
        total = joined[-1].tally.add(piece.tally) if joined else piece.tally
        if joined and rule.holds(total):
            joined[-1] = joined[-1]._replace(tally=total)
        else:
            joined.append(piece)
    return joined


def plan_shards(ranges: Iterable[Sequence[Piece]], rule: ShardRule) -> Plan:
    """Makes shards of the pieces of all ranges, which may be in any order."""
    pieces = sorted(piece for found in ranges for piece in found)
    shards = pieces if rule.num_shards else _join(pieces, rule)
    return Plan(tuple(shard.first for shard in shards), tuple(shard.tally for shard in shards))


def to_shard(encoded: bytes, plan: Plan) -> tuple[int, bytes]:
    """Returns the number of a sample's shard, and the encoded sample."""
    return bisect_right(plan.firsts, encoded[:HASH_BYTES]) - 1, encoded


def to_range(encoded: bytes, rule: ShardRule) -> tuple[int, bytes]:
    """Returns the number of a sample's range, and the encoded sample."""
    return rule.range_of(encoded), encoded


def shards_of(group: int, plan: Plan, rule: ShardRule) -> range:
    """Returns the numbers of the shards that are made of a group of samples.

    Args:
        group: The number of a shard, or of a range if `num_shards` is given.
        plan: The division of all samples.
        rule: Says which of both it is.
    """
    if not rule.num_shards:
        return range(group, group + 1)
    if not 0 <= group < rule.num_shards:
        return range(group, group)
    begin = bisect_left(plan.firsts, rule.start_of(group))
    is_last = group + 1 == rule.num_shards
    end = len(plan.firsts) if is_last else bisect_left(plan.firsts, rule.start_of(group + 1))
    return range(begin, end)
