"""What every bucket must hold, by the index of the token parts, and refusing what is not that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.shards.seal import Seal, add_seals
from pipeline.tokens.buckets import Bucket
from pipeline.tokens.grouped_rows import Rows
from pipeline.tokens.held_out import is_held_out
from pipeline.tokens.token_parts import id_keys


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
