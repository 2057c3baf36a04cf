"""The seal of a set of documents: how many, their tokens, the xor of their ids.

What one place says of a bucket's documents is held to what another found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Seal:
    """What a set of distinct documents adds up to; `tokens` count no [CLS] or [SEP]."""

    documents: int
    tokens: int
    ids_xor: str
    """Exclusive or of their 128-bit ids, in 32 hex digits."""

    def __add__(self, other: "Seal") -> "Seal":
        """The seal of both sets together, which have no document in common."""
        ids_xor = f"{int(self.ids_xor, 16) ^ int(other.ids_xor, 16):032x}"
        return Seal(self.documents + other.documents, self.tokens + other.tokens, ids_xor)

    def __str__(self) -> str:
        return f"{self.documents:,} documents of {self.tokens:,} tokens (xor of ids {self.ids_xor})"


NOTHING = Seal(0, 0, "0" * 2 * ID_BYTES)
"""The seal of no documents."""


def seal_documents(ids: Sequence[bytes], num_tokens: int) -> Seal:
    """The seal of distinct documents, from their ids and the tokens of all of them."""
    halves = np.frombuffer(b"".join(ids), ">u8").reshape(-1, 2)
    high, low = np.bitwise_xor.reduce(halves, axis=0).tolist()
    return Seal(len(ids), num_tokens, f"{high:016x}{low:016x}")


def add_seals(seals: Iterable[Seal]) -> Seal:
    """The seal of sets without a common document together."""
    return sum(seals, NOTHING)
