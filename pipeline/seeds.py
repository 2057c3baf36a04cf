"""Seeds random generators from keys that say what is drawn, and draws from them.

A key names the seed of the build, the purpose, the pass and the document or bucket. So a draw does
not depend on the order in which documents are processed.

Only ``getrandbits`` and ``random`` are called, because Python guarantees their results. The results
of ``randint``, ``shuffle`` and numpy's generators may change with a version, and the dataset would
change with them.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""Random 64-bit integers."""
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The step of SplitMix64's counter."""


def seed_for(seed: int, purpose: str, pass_index: int, id_hex: str) -> int:
    """Returns the 128-bit seed for one purpose in one document or bucket.

    Args:
        seed: The seed of the build.
        purpose: What is drawn, such as "pairs-L128".
        pass_index: The number of the pass, from 0.
        id_hex: The id of the document or bucket, in hex.
    """
    return seed_of(f"{seed}/{purpose}/{pass_index}/{id_hex}")


def seed_of(key: str, num_bytes: int = 16) -> int:
    """Returns the seed of a key: its blake2b hash as a little-endian integer.

    Args:
        key: Says what is drawn, such as "7/weights/embeddings.weight".
        num_bytes: The size of the seed.
    """
    return int.from_bytes(blake2b(key.encode(), digest_size=num_bytes).digest(), "little")


def draw_below(limit: int, getrandbits: Callable[[int], int]) -> int:
    """Draws a uniform integer in [0, limit), as CPython's ``randint(0, limit - 1)`` does.

    Args:
        limit: The number of possible results, 1 or more.
        getrandbits: The method of a ``random.Random``.
    """
    num_bits = limit.bit_length()
    value = getrandbits(num_bits)
    while value >= limit:
        value = getrandbits(num_bits)
    return value


def random_words(num_words: int, rng: Random) -> Words:
    """Returns [num_words] uniform 64-bit integers that are all different.

    They are the first numbers of SplitMix64 (Steele, Lea and Flood, 2014). Its seed is drawn from
    `rng`.
    """
    words = np.arange(1, num_words + 1, dtype=np.uint64)
    words *= _GAMMA
    words += np.uint64(rng.getrandbits(64))
    return _mix(words)


def words_at(seeds: Words, places: Words) -> Words:
    """Returns numbers of SplitMix64 at given places of its sequences.

    Args:
        seeds: The seeds of the sequences, of any shape.
        places: The places in the sequences, from 0 on. The two shapes are broadcast.
    """
    return _mix((places + np.uint64(1)) * _GAMMA + seeds)


def _mix(words: Words) -> Words:
    """Turns values of SplitMix64's counter into its random numbers, in place."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def permutation(num_items: int, rng: Random) -> npt.NDArray[np.int64]:
    """Returns the numbers from 0 to num_items - 1 in a uniformly random order, [num_items].

    They are sorted by random keys, which are all different.
    """
    return np.argsort(random_words(num_items, rng)).astype(np.int64, copy=False)
