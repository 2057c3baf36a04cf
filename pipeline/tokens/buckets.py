"""How many buckets there are, which ids one holds, and what its documents must add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.shards.seal import Seal, add_seals
from pipeline.tokens.grouped_rows import Rows
from pipeline.tokens.held_out import is_held_out
from pipeline.tokens.token_parts import ID_BYTES, id_keys, split_id

PREFIX_BITS = 12  # of ids in prefixes.rows, and of the counts that buckets are chosen by
_FINE_PREFIX_BITS = 16  # of these counts above so much text
_COARSE_BYTES = 256 * 2**30
MAX_BUCKETS = 1 << _FINE_PREFIX_BITS
MAX_BUCKET_BYTES = 128 * 2**20
MIN_BUCKET_DOCUMENTS = 64
VALIDATION_RULES = 2
"""Version of the rules that choose validation documents (pipeline.tokens.held_out)."""


@dataclass(frozen=True)
class Bucket:
    """Documents with ids in [first_id, last_id]: in train those that are not held out."""

    split: str
    number: int
    num_buckets: int
    first_id: bytes
    last_id: bytes

    @property
    def name(self) -> str:
        """Seeds the bucket's draws."""
        return f"{self.split}-{self.number:05d}-of-{self.num_buckets:05d}"

    @property
    def prefixes(self) -> range:
        """The id prefixes that the bucket's documents can have."""
        return range(prefix_of(self.first_id), prefix_of(self.last_id) + 1)


def plan_buckets(num_train_buckets: int, held_out: bytes) -> list[Bucket]:
    """The bucket of the validation documents (`HeldOut.ids`), if any, and the train buckets."""
    validation = Bucket("validation", 0, 1, held_out[:ID_BYTES], held_out[-ID_BYTES:])
    buckets = [validation] if held_out else []
    size = (1 << 128) // num_train_buckets
    for number in range(num_train_buckets):
        ends = (end.to_bytes(ID_BYTES, "big") for end in (number * size, (number + 1) * size - 1))
        buckets.append(Bucket("train", number, num_train_buckets, *ends))
    return buckets


def choose_num_buckets(
    documents_by_prefix: npt.NDArray[np.int64],
    total_bytes: int,
    num_wanted: int | None,
    where: str,
    num_used: int | None = None,
) -> int:
    """Train buckets: the least power of two with at most 128 MiB of text, some 64 documents each.

    Halved until each bucket holds 2 documents, because a random B comes from another one. Weights
    may leave only `num_used` documents in a pass. A user's `num_wanted` is checked. Distinct train
    documents are counted by the first bits of their ids, [4096 or 65536]: the most buckets.
    """
    total, most = int(documents_by_prefix.sum()), len(documents_by_prefix)
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
    """How many prefixes of ids documents are counted by: 4,096, above 256 GiB of text 65,536."""
    return 1 << (PREFIX_BITS if cleaned_bytes <= _COARSE_BYTES else _FINE_PREFIX_BITS)


def prefix_of(document_id: bytes, num: int = 1 << PREFIX_BITS) -> int:
    """Which of the `num` prefixes, a power of two, an id has."""
    return split_id(document_id)[0] * num >> 64


def _fewest_documents(documents_by_prefix: npt.NDArray[np.int64], num_buckets: int) -> int:
    return int(documents_by_prefix.reshape(num_buckets, -1).sum(axis=1).min())


@dataclass(frozen=True)
class BucketContents:
    """A bucket's distinct documents, the rows of parts that hold one, the sum of their crc32."""

    seal: Seal
    rows: int
    checksum: int

    def __str__(self) -> str:
        return f"{self.seal} in {self.rows:,} rows (sum of crc32 {self.checksum:x})"


class BucketSums:
    """Adds up the contents of all buckets; memory is a few numbers a bucket."""

    def __init__(self, buckets: Sequence[Bucket], held_out: bytes) -> None:
        """Takes all buckets and the ids of the validation documents."""
        self._buckets = buckets
        self._finder = BucketFinder(buckets, held_out)
        self._counts = np.zeros((4, len(buckets)), np.uint64)  # documents, tokens, rows, crc32
        self._ids = np.zeros((2, len(buckets)), np.uint64)  # xor of either half

    def add(
        self, documents: Rows, num_rows: npt.NDArray[np.int64], crc32: npt.NDArray[np.uint64]
    ) -> None:
        """Counts distinct documents, each with its rows and the sum of their crc32."""
        owners = self._finder.find(documents)
        counted = np.ones_like(num_rows), documents["tokens"], num_rows, crc32
        for row, values in enumerate(counted):
            np.add.at(self._counts[row], owners, values.astype(np.uint64))
        for row, name in enumerate(("high", "low")):
            np.bitwise_xor.at(self._ids[row], owners, documents[name])

    def contents(self) -> dict[str, BucketContents]:
        """What was counted, by the bucket's name."""
        columns = zip(self._buckets, *self._counts.tolist(), *self._ids.tolist(), strict=True)
        return {
            bucket.name: BucketContents(
                Seal(documents, tokens, f"{high:016x}{low:016x}"), rows, checksum
            )
            for bucket, documents, tokens, rows, checksum, high, low in columns
        }


class BucketFinder:
    """Finds the bucket of documents by their ids."""

    def __init__(self, buckets: Sequence[Bucket], held_out: bytes) -> None:
        """Takes some buckets, all or not, in any order, and the ids of the validation documents."""
        train = [place for place, bucket in enumerate(buckets) if bucket.split == "train"]
        self._order = np.array(sorted(train, key=lambda place: buckets[place].first_id), np.int64)
        self._first_ids = np.array([buckets[place].first_id for place in self._order], "S16")
        self._last_ids = np.array([buckets[place].last_id for place in self._order], "S16")
        self._held_out, self.none = held_out, len(buckets)
        splits = [bucket.split for bucket in buckets]
        self._validation = splits.index("validation") if "validation" in splits else self.none

    def find(self, documents: Rows) -> npt.NDArray[np.int64]:
        """[D] the place of each document's bucket among the buckets, `none` outside all of them."""
        keys = id_keys(documents)
        places = np.searchsorted(self._first_ids, keys, side="right") - 1
        inside = np.flatnonzero(places >= 0)
        inside = inside[keys[inside] <= self._last_ids[places[inside]]]
        found = np.full(len(documents), self.none)
        found[inside] = self._order[places[inside]]
        found[is_held_out(documents, self._held_out)] = self._validation
        return found


def total_seal(contents: Mapping[str, BucketContents]) -> Seal:
    """The seal of all buckets together."""
    return add_seals(each.seal for each in contents.values())
