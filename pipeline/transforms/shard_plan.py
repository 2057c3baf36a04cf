"""Decides which samples go into which shard, from the hashes and sizes of all samples.

Samples are ordered by the hashes of their keys, and a shard holds a range of hashes. There may be
too many samples for one worker to see all their sizes. So the plan is made in two steps:

1. The hashes are divided into 4,096 equal ranges. For each sample, a `size row` of 28 bytes holds
   the hash and the size. One worker gets all size rows of a range (`plan_range`). It divides the
   range into 16 cells, each a 65,536th of all hashes. A cell that fits into a shard is one piece. A
   larger cell is divided into several pieces, each of which fits into a shard.
2. One worker gets the pieces of all ranges (`plan_shards`). It joins neighbouring pieces while they
   fit into one shard. There are at most 65,536 pieces and two more for each shard.

So a shard is never too large, and the plan depends on the samples alone.

If `num_shards` is given, the hashes are divided into that many ranges, and there are no cells. Each
range becomes one shard, or several if it is too large for one. Pieces are not joined. The range of
a sample is then known before there is a plan.
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
from pipeline.transforms.encoded_samples import HASH_BYTES, tar_bytes

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
    """A range of samples that `plan_shards` does not divide: it becomes a shard or a part of one.

    Attributes:
        first: The smallest hash of the samples' keys.
        tally: The size of the samples together.
    """

    first: bytes
    tally: Tally


PieceRow = tuple[bytes, int, int, int]
"""A piece as a plain tuple: `first`, and the three numbers of its tally.

Workers send pieces to each other in this form. Beam encodes it 10 times as fast as a `Piece`, which
it would pickle.
"""


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
        num_shards: The number of ranges of hashes, each of which becomes one shard or several. None
            to make shards as large as the limits allow.
        rejects: Whether samples that cannot be written are left out. If several samples have the
            same key, only the smallest one is then written. If false, such samples end the job.
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
        """Returns whether a file's name is that of a shard of this dataset, of any number."""
        return re.fullmatch(rf"{re.escape(self.name)}-\d{{6,}}\.tar", name) is not None

    def is_own(self, name: str) -> bool:
        """Returns whether a file has the name of a shard or of an index of this dataset."""
        return name in (self.manifest, self.wids_index) or self.is_shard(name)

    def holds(self, tally: Tally) -> bool:
        """Returns whether samples of this size fit into one shard, the end of the tar included."""
        num_bytes = tally.num_bytes + len(end_of_tar(tally.num_bytes))
        return num_bytes <= self.max_bytes and tally.samples <= self.max_samples

    def range_of(self, encoded: bytes) -> int:
        """Returns the number of the range of hashes that an encoded sample belongs to.

        Args:
            encoded: The sample, which begins with the hash of its key (`encode_sample`).
        """
        number = int.from_bytes(encoded[:HASH_BYTES], "big")
        return number * (self.num_shards or _NUM_RANGES) >> 8 * HASH_BYTES

    def start_of(self, number: int) -> bytes:
        """Returns the smallest hash of range `number`. It is called only if `num_shards` is set."""
        assert self.num_shards, "ranges are shards"
        start = -(-(number << 8 * HASH_BYTES) // self.num_shards)  # rounded up
        return start.to_bytes(HASH_BYTES + 1, "big")[1:]


def to_size_row(encoded: bytes, rule: ShardRule) -> tuple[int, bytes]:
    """Returns the range of an encoded sample, and the row that stands for the sample in the plan.

    Returns:
        The number of the range, and the size row: the hash of the sample's key (16 bytes), the
        sample's size in a tar (8) and its crc32 (4).
    """
    row = _SIZE_ROW.pack(encoded[:HASH_BYTES], tar_bytes(encoded), crc32(encoded))
    return rule.range_of(encoded), row


def plan_range(group: tuple[int, Iterable[bytes]], rule: ShardRule) -> list[PieceRow]:
    """Divides the samples of a range into pieces that fit into a shard.

    Samples with the same key always stay in one piece. So they are in one shard, and are noticed
    when it is written. If `rule.rejects`, only the smallest of them is counted.

    Args:
        group: The number of the range, and its size rows in any order.
        rule: How large a shard may be, and whether the range is divided into cells.

    Returns:
        The pieces in the order of their hashes, one for each cell or several. If `num_shards` is
        given, they are the pieces of the whole range.
    """
    _, given = group
    rows: Iterable[bytes] = sorted(given)
    if rule.rejects:
        rows = (next(same) for _, same in groupby(rows, key=_hash_of))
    if rule.num_shards:
        pieces = _divide([*rows], rule)
    else:
        cells = groupby(rows, key=lambda row: row[:_CELL_BYTES])
        pieces = [piece for _, cell in cells for piece in _divide([*cell], rule)]
    return [(piece.first, *piece.tally) for piece in pieces]


def _hash_of(row: bytes) -> bytes:
    """Returns the hash of a sample's key, with which its size row and its encoded form begin."""
    return row[:HASH_BYTES]


def _divide(rows: Sequence[bytes], rule: ShardRule) -> list[Piece]:
    """Divides sorted size rows into as many pieces as are needed for each to fit into a shard."""
    whole = _make_piece(rows)
    if rule.holds(whole.tally):
        return [whole]
    return _join((_make_piece([*same]) for _, same in groupby(rows, key=_hash_of)), rule)


def _make_piece(rows: Sequence[bytes]) -> Piece:
    """Returns the piece that consists of the samples of sorted size rows (at least one row)."""
    num_bytes = 0
    checksum = 0
    for row in rows:
        _, row_bytes, row_checksum = _SIZE_ROW.unpack(row)
        num_bytes += row_bytes
        checksum += row_checksum
    return Piece(_hash_of(rows[0]), Tally(len(rows), num_bytes, checksum))


def _join(pieces: Iterable[Piece], rule: ShardRule) -> list[Piece]:
    """Joins each piece to the ones before it as long as they fit into one shard together."""
    joined: list[Piece] = []
    for piece in pieces:
        total = joined[-1].tally.add(piece.tally) if joined else piece.tally
        if joined and rule.holds(total):
            joined[-1] = joined[-1]._replace(tally=total)
        else:
            joined.append(piece)
    return joined


def plan_shards(ranges: Iterable[Sequence[PieceRow]], rule: ShardRule) -> Plan:
    """Plans the shards: decides with which hash each of them begins, and how large it is.

    Args:
        ranges: The pieces of each range, as `plan_range` returns them. The ranges may be in any
            order.
        rule: Says how large a shard may be. If its `num_shards` is given, every piece becomes a
            shard. Otherwise neighbouring pieces are joined while they fit into one shard.
    """
    rows = sorted(row for found in ranges for row in found)
    pieces = (Piece(first, Tally(*numbers)) for first, *numbers in rows)
    shards = [*pieces] if rule.num_shards else _join(pieces, rule)
    return Plan(tuple(shard.first for shard in shards), tuple(shard.tally for shard in shards))


def to_shard(encoded: bytes, plan: Plan) -> tuple[int, bytes]:
    """Returns the number of a sample's shard, and the encoded sample."""
    return bisect_right(plan.firsts, encoded[:HASH_BYTES]) - 1, encoded


def to_range(encoded: bytes, rule: ShardRule) -> tuple[int, bytes]:
    """Returns the number of a sample's range, and the encoded sample."""
    return rule.range_of(encoded), encoded


def shards_of(group: int, plan: Plan, rule: ShardRule) -> range:
    """Returns the numbers of the shards into which a group of samples is written.

    Args:
        group: The number of the group. If `rule.num_shards` is None, a group is one shard.
            Otherwise it is a range of hashes, which may give several shards, or none if it has no
            samples.
        plan: The division of all samples.
        rule: The rule by which the plan was made.
    """
    if not rule.num_shards:
        return range(group, group + 1)
    if not 0 <= group < rule.num_shards:
        return range(group, group)
    begin = bisect_left(plan.firsts, rule.start_of(group))
    is_last = group + 1 == rule.num_shards
    end = len(plan.firsts) if is_last else bisect_left(plan.firsts, rule.start_of(group + 1))
    return range(begin, end)
