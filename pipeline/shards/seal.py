"""The seal of a set of documents: how many, their tokens, the xor of their ids. Seals of sets that share none add up.

What one place says of a bucket's documents is held to what another found, without either knowing
the ids themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Seal:
    """What a set of distinct documents adds up to.

    Attributes:
        documents: How many there are.
        tokens: Tokens of their text, as it was encoded; no [CLS] or [SEP] is among them.
        ids_xor: Exclusive or of their 128-bit ids, in 32 hex digits.
    """

    documents: int
    tokens: int
    ids_xor: str

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
    """The seal of all sets together, no two of which have a document in common."""
    return sum(seals, NOTHING)
