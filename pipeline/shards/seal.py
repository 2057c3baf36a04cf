"""Defines seals: three numbers that show whether two stages saw the same set of documents.

The seal of a set of documents is their number, the number of their tokens, and the exclusive or of
their ids (docs/format.md, section 3). If two stages disagree on the seal of a bucket, documents
were lost or repeated between them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of a set of distinct documents.

    Attributes:
        documents: Number of documents.
        tokens: Number of tokens of their text, without [CLS] and [SEP].
        ids_xor: Exclusive or of their 128-bit ids, in 32 hex digits.
    """

    documents: int
    tokens: int
    ids_xor: str

    def __add__(self, other: "Seal") -> "Seal":
        """Returns the seal of both sets together. They must have no document in common."""
        ids_xor = f"{int(self.ids_xor, 16) ^ int(other.ids_xor, 16):032x}"
        return Seal(self.documents + other.documents, self.tokens + other.tokens, ids_xor)

    def __str__(self) -> str:
        return f"{self.documents:,} documents of {self.tokens:,} tokens (xor of ids {self.ids_xor})"


NOTHING = Seal(0, 0, "0" * 2 * ID_BYTES)
"""The seal of no documents."""


def seal_documents(ids: Sequence[bytes], num_tokens: int) -> Seal:
    """Returns the seal of distinct documents.

    Args:
        ids: Their ids, 16 bytes each.
        num_tokens: The number of tokens of all of them together.
    """
    halves = np.frombuffer(b"".join(ids), ">u8").reshape(-1, 2)
    high, low = np.bitwise_xor.reduce(halves, axis=0).tolist()
    return Seal(len(ids), num_tokens, f"{high:016x}{low:016x}")


def add_seals(seals: Iterable[Seal]) -> Seal:
    """Returns the seal of the union of several sets of documents.

    Args:
        seals: The seal of each set. A document must not be in two of the sets, because its id would
            cancel out.
    """
    return sum(seals, NOTHING)
