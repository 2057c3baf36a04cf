"""Divides documents into buckets, and adds up what a bucket must hold when its shards are made.

A bucket holds the documents whose ids are in a range. Each pass makes one shard of each bucket, and
a bucket is in memory as a whole while its shards are made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.shards.seal import Seal, add_seals
from pipeline.tokens.grouped_rows import Rows
from pipeline.tokens.held_out import is_held_out
from pipeline.tokens.token_parts import ID_BYTES, id_keys, split_id

PREFIX_BITS = 12
"""Bits of an id's prefix in prefixes.rows, and in the counts by which buckets are chosen."""

_FINE_PREFIX_BITS = 16  # in these counts, if there are more than _COARSE_BYTES of text
_COARSE_BYTES = 256 * 2**30
MAX_BUCKETS = 1 << _FINE_PREFIX_BITS
MAX_BUCKET_BYTES = 128 * 2**20
"""The most bytes of cleaned text in a bucket, on average."""

MIN_BUCKET_DOCUMENTS = 64
"""The fewest documents in a bucket, on average."""

VALIDATION_RULES = 2
"""Version of the rules that choose validation documents (pipeline.tokens.held_out)."""


@dataclass(frozen=True)
class Bucket:
    """A range of document ids. The documents of a bucket become one shard of each pass.

    Attributes:
        split: "train" or "validation". A train bucket does not hold the validation documents,
            although their ids may be in its range.
        number: The number of the bucket in its split, from 0.
        num_buckets: The number of buckets of the split.
        first_id: The first id of the range.
        last_id: The last id of the range, inclusive.
    """

    split: str
    number: int
    num_buckets: int
    first_id: bytes
    last_id: bytes

    @property
    def name(self) -> str:
        """Name of the bucket, such as "train-00003-of-00016"; a part of the keys of its seeds."""
        return f"{self.split}-{self.number:05d}-of-{self.num_buckets:05d}"

    @property
    def prefixes(self) -> range:
        """The prefixes (`prefix_of`) that ids from `first_id` to `last_id` can have."""
        return range(prefix_of(self.first_id), prefix_of(self.last_id) + 1)


def plan_buckets(num_train_buckets: int, held_out: bytes) -> list[Bucket]:
    """Returns the validation bucket, if documents are held out, and then the train buckets.

    Args:
        num_train_buckets: The number of train buckets, a power of two.
        held_out: The ids of the validation documents (`HeldOut.ids`); empty if there are none.
    """
    buckets: list[Bucket] = []
    if held_out:
        buckets.append(Bucket("validation", 0, 1, held_out[:ID_BYTES], held_out[-ID_BYTES:]))
    size = (1 << 128) // num_train_buckets
    for number in range(num_train_buckets):
        first_id = (number * size).to_bytes(ID_BYTES, "big")
        last_id = ((number + 1) * size - 1).to_bytes(ID_BYTES, "big")
        buckets.append(Bucket("train", number, num_train_buckets, first_id, last_id))
    return buckets


def choose_num_buckets(
    documents_by_prefix: npt.NDArray[np.int64],
    total_bytes: int,
    num_wanted: int | None,
    where: str,
    num_used: int | None = None,
) -> int:
    """Chooses the number of train buckets, or checks the number that the user asked for.

    The number is a power of two. It begins as the smallest one with at most 128 MiB of text in a
    bucket on average. Then it is halved until the buckets have at least 64 used documents on
    average, and each of them at least 2 documents. A bucket needs two because the random B of a
    pair is from another document of the bucket than A.

    Args:
        documents_by_prefix: [4096] or [65536], the numbers of distinct train documents by the first
            bits of their ids. There cannot be more buckets than prefixes.
        total_bytes: The bytes of the documents' cleaned text.
        num_wanted: The number of buckets that the user asked for; None to choose it.
        where: The name of the setting, for messages.
        num_used: The number of documents that a pass uses, if the weights of sources leave some
            out; None if all are used.

    Raises:
        ValueError: `num_wanted` is not a power of two, is larger than the number of prefixes, or
            leaves a bucket with fewer than 2 documents.
    """
    total = int(documents_by_prefix.sum())
    most = len(documents_by_prefix)
    if num_wanted is not None:
        if num_wanted not in {1 << bit for bit in range(most.bit_length())}:
            raise ValueError(
                f"{where}: {num_wanted} is not a power of two between 1 and {most}, the most for"
                f" {total_bytes:,} bytes"
            )
        if _fewest_documents(documents_by_prefix, num_wanted) < 2:
            raise ValueError(
                f"{where}: {num_wanted} buckets leave one with fewer than 2 of {total} documents;"
                " take fewer"
            )
        return num_wanted

    used = total if num_used is None else min(total, num_used)
    num_buckets = 1
    while num_buckets < most and total_bytes > num_buckets * MAX_BUCKET_BYTES:
        num_buckets *= 2
    while num_buckets > 1 and (
        used < num_buckets * MIN_BUCKET_DOCUMENTS
        or _fewest_documents(documents_by_prefix, num_buckets) < 2
    ):
        num_buckets //= 2
    return num_buckets


def num_prefixes(cleaned_bytes: int) -> int:
    """Returns the number of id prefixes by which documents are counted for `choose_num_buckets`.

    It is 4,096, or 65,536 if there are more than 256 GiB of text.

    Args:
        cleaned_bytes: The bytes of the cleaned text of all documents.
    """
    return 1 << (PREFIX_BITS if cleaned_bytes <= _COARSE_BYTES else _FINE_PREFIX_BITS)


def prefix_of(document_id: bytes, num: int = 1 << PREFIX_BITS) -> int:
    """Returns the prefix of an id: the number that its first bits make.

    Args:
        document_id: The id, 16 bytes.
        num: How many prefixes there are, a power of two. The prefix is a number below it.
    """
    return split_id(document_id)[0] * num >> 64


def _fewest_documents(documents_by_prefix: npt.NDArray[np.int64], num_buckets: int) -> int:
    """Returns the number of documents of the smallest one of `num_buckets` buckets."""
    return int(documents_by_prefix.reshape(num_buckets, -1).sum(axis=1).min())


@dataclass(frozen=True)
class BucketContents:
    """Checks by which a task knows that it has read all documents of a bucket, each unchanged.

    A document that occurs several times in the input has several rows in the indexes of token
    parts. All of them are read, and then one copy is kept.

    Attributes:
        seal: The seal of the distinct documents (`pipeline.shards.seal`).
        rows: The number of their rows, copies included.
        checksum: The sum of the crc32 of all these rows.
    """

    seal: Seal
    rows: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.seal} in {self.rows:,} rows (sum of crc32 {self.checksum:x})"


class BucketSums:
    """Adds up the `BucketContents` of all buckets, without holding the documents in memory."""

    def __init__(self, buckets: Sequence[Bucket], held_out: bytes) -> None:
        """Starts with empty buckets.

        Args:
            buckets: All buckets.
            held_out: The ids of the validation documents (`HeldOut.ids`).
        """
        self._buckets = buckets
        self._finder = BucketFinder(buckets, held_out)
        self._counts = np.zeros((4, len(buckets)), np.uint64)  # documents, tokens, rows, crc32
        self._ids = np.zeros((2, len(buckets)), np.uint64)  # xor of the ids' high and low halves

    def add(
        self, documents: Rows, num_rows: npt.NDArray[np.int64], crc32: npt.NDArray[np.uint64]
    ) -> None:
        """Adds distinct documents to their buckets.

        Args:
            documents: [D] rows of the index, one for each document.
            num_rows: [D] for each document the number of its rows, copies included.
            crc32: [D] for each document the sum of the crc32 of these rows.
        """
        buckets = self._finder.find(documents)
        counted = (np.ones_like(num_rows), documents["tokens"], num_rows, crc32)
        for row, values in enumerate(counted):
            np.add.at(self._counts[row], buckets, values.astype(np.uint64))
        for row, name in enumerate(("high", "low")):
            np.bitwise_xor.at(self._ids[row], buckets, documents[name])

    def contents(self) -> dict[str, BucketContents]:
        """Returns the contents of every bucket, by the bucket's name."""
        columns = zip(self._buckets, *self._counts.tolist(), *self._ids.tolist(), strict=True)
        return {
            bucket.name: BucketContents(
                Seal(documents, tokens, f"{high:016x}{low:016x}"), rows, checksum
            )
            for bucket, documents, tokens, rows, checksum, high, low in columns
        }


class BucketFinder:
    """Finds the buckets of documents by their ids.

    Attributes:
        none: The number that `find` returns for documents that are in none of the buckets. It is
            the number of buckets, so it is no index of one.
    """

    def __init__(self, buckets: Sequence[Bucket], held_out: bytes) -> None:
        """Sorts the buckets by their ids.

        Args:
            buckets: Some or all buckets, in any order.
            held_out: The ids of the validation documents (`HeldOut.ids`).
        """
        train = [index for index, bucket in enumerate(buckets) if bucket.split == "train"]
        self._order = np.array(sorted(train, key=lambda index: buckets[index].first_id), np.int64)
        self._first_ids = np.array([buckets[index].first_id for index in self._order], "S16")
        self._last_ids = np.array([buckets[index].last_id for index in self._order], "S16")
        self._held_out = held_out
        self.none = len(buckets)
        splits = [bucket.split for bucket in buckets]
        self._validation = splits.index("validation") if "validation" in splits else self.none

    def find(self, documents: Rows) -> npt.NDArray[np.int64]:
        """Returns for each document the index of its bucket, or `none`: [D] int64.

        Args:
            documents: [D] rows of the index.
        """
        keys = id_keys(documents)
        places = np.searchsorted(self._first_ids, keys, side="right") - 1
        inside = np.flatnonzero(places >= 0)
        inside = inside[keys[inside] <= self._last_ids[places[inside]]]
        indices = np.full(len(documents), self.none)
        indices[inside] = self._order[places[inside]]
        indices[is_held_out(documents, self._held_out)] = self._validation
        return indices


def total_seal(contents: Mapping[str, BucketContents]) -> Seal:
    """Returns the seal of the documents of all buckets together."""
    return add_seals(bucket.seal for bucket in contents.values())
