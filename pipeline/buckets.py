"""Which documents form a bucket: how many buckets, which documents are validation, which ids a bucket holds.

Pure functions of the distinct documents' totals, so that file sizes, names and compression change nothing. May import:
stdlib, numpy, pipeline.token_parts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.token_parts import split_id

PREFIX_BITS = 12
NUM_PREFIXES = 1 << PREFIX_BITS
MAX_BUCKET_BYTES = 128 * 2**20
MIN_BUCKET_DOCUMENTS = 64
VALIDATION_TOKENS = 1_280_000
_LARGEST_ID = (1 << 128) - 1


@dataclass(frozen=True)
class Bucket:
    """Documents whose ids, read as 128-bit integers, lie in [first_id, last_id].

    Attributes:
        split: train or validation.
        number: Counted from 0 inside the split; also the shard's number.
        num_buckets: Buckets of the split.
        first_id: 16 bytes.
        last_id: 16 bytes, inclusive.
    """

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
        first, last = (int.from_bytes(end[:4], "big") >> (32 - PREFIX_BITS) for end in (self.first_id, self.last_id))
        return range(first, last + 1)


def plan_buckets(num_train_buckets: int, last_validation_id: bytes | None) -> list[Bucket]:
    """The validation bucket, if any, and the train buckets: equal ranges of ids above the validation documents."""
    buckets = []
    first_train = 0
    if last_validation_id is not None:
        buckets.append(Bucket("validation", 0, 1, bytes(16), last_validation_id))
        first_train = int.from_bytes(last_validation_id, "big") + 1
    for number in range(num_train_buckets):
        first = max(first_train, number * (_LARGEST_ID + 1) // num_train_buckets)
        last = (number + 1) * (_LARGEST_ID + 1) // num_train_buckets - 1
        ends = first.to_bytes(16, "big"), last.to_bytes(16, "big")
        buckets.append(Bucket("train", number, num_train_buckets, *ends))
    return buckets


def choose_num_buckets(
    documents_by_prefix: npt.NDArray[np.int64],
    total_bytes: int,
    num_wanted: int | None,
    where: str,
    num_used: int | None = None,
) -> int:
    """Train buckets: the smallest power of two with at most 128 MiB of text and some 64 documents each.

    Halved until no bucket holds fewer than 2 documents, because a random B must come from another one.

    Args:
        documents_by_prefix: [4096] distinct train documents by the first 12 bits of their ids.
        total_bytes: Cleaned text of all of them.
        num_wanted: The user's number instead, checked.
        where: The setting's name, for messages.
        num_used: Documents that a pass uses, where weights leave some of them out.

    Raises:
        ValueError: The user's number is no power of two up to 4096 or leaves a bucket with fewer than 2 documents.
    """
    total = int(documents_by_prefix.sum())
    if num_wanted is not None:
        if num_wanted not in {1 << bit for bit in range(PREFIX_BITS + 1)}:
            raise ValueError(f"{where}: {num_wanted} is not a power of two between 1 and {NUM_PREFIXES}")
        if _fewest_documents(documents_by_prefix, num_wanted) < 2:
            raise ValueError(
                f"{where}: {num_wanted} buckets leave one with fewer than 2 of {total} documents; take fewer"
            )
        return num_wanted
    num_buckets = 1
    while num_buckets < NUM_PREFIXES and total_bytes > num_buckets * MAX_BUCKET_BYTES:
        num_buckets *= 2
    while num_buckets > 1 and min(total, total if num_used is None else num_used) < num_buckets * MIN_BUCKET_DOCUMENTS:
        num_buckets //= 2
    while num_buckets > 1 and _fewest_documents(documents_by_prefix, num_buckets) < 2:
        num_buckets //= 2
    return num_buckets


def choose_validation(
    lowest_ids: list[bytes],
    lowest_tokens: list[int],
    num_documents: int,
    fraction: float,
    most_tokens: int = VALIDATION_TOKENS,
) -> bytes | None:
    """The id up to which documents are validation: n = max(2, fraction of them), of at most so many tokens.

    Args:
        lowest_ids: The lowest distinct ids, ascending; enough of them to hold most_tokens, or all.
        lowest_tokens: Tokens of each.
        num_documents: Distinct documents of the corpus.
        fraction: Share of documents; 0 for no validation split.
        most_tokens: Of the split, unless its first two documents have more.

    Raises:
        ValueError: Fewer documents than two for each split; fewer than two without validation.
    """
    needed = 4 if fraction > 0 else 2
    if num_documents < needed:
        raise ValueError(
            f"the input holds {num_documents} distinct document(s), at least {needed} are needed: next sentence"
            " prediction takes a random B from another document of the same split; add text"
            + (", or set validation_fraction to 0" if fraction > 0 and num_documents >= 2 else "")
        )
    if fraction <= 0:
        return None
    wanted = min(max(2, int(num_documents * fraction)), num_documents - 2)
    within = int(np.searchsorted(np.cumsum(lowest_tokens), most_tokens, side="right"))
    return lowest_ids[max(2, min(wanted, within)) - 1]


def prefix_of(document_id: bytes) -> int:
    """The first 12 bits of an id."""
    return split_id(document_id)[0] >> (64 - PREFIX_BITS)


def _fewest_documents(documents_by_prefix: npt.NDArray[np.int64], num_buckets: int) -> int:
    return int(documents_by_prefix.reshape(num_buckets, -1).sum(axis=1).min())
