"""How many buckets there are and which ids one holds, by the distinct documents' totals alone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.tokens.token_parts import ID_BYTES, split_id

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
