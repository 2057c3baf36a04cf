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
    """Hashes a key by blake2b, and returns the hash as a little-endian integer: the seed.

    Args:
        key: A text that says what is drawn, such as "7/weights/embeddings.weight".
        num_bytes: The size of the hash in bytes. The seed is less than 256 ** num_bytes.
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
    """Returns a [num_words] array of random 64-bit integers, of which no two are equal.

    The integers are the first numbers of the generator SplitMix64 (Steele, Lea and Flood, 2014),
    whose seed is drawn from `rng`.
    """
    words = np.arange(1, num_words + 1, dtype=np.uint64)
    words *= _GAMMA
    words += np.uint64(rng.getrandbits(64))
    return _mix(words)


def words_at(seeds: Words, places: Words) -> Words:
    """Returns chosen random numbers of the generator SplitMix64, without drawing earlier ones.

    Each seed begins a sequence of random numbers. An element of the result is the number with the
    index `places` in the sequence of `seeds`.

    Args:
        seeds: The seed of each sequence.
        places: Indices in the sequences, from 0. The shapes of `seeds` and `places` are broadcast:
            [N, 1] and [M] give an [N, M] result.
    """
    return _mix((places + np.uint64(1)) * _GAMMA + seeds)


def _mix(words: Words) -> Words:
    """Returns the random number that SplitMix64 makes of each value of its counter.

    An array is overwritten by the result.
    """
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def permutation(num_items: int, rng: Random) -> npt.NDArray[np.int64]:
    """Returns a [num_items] array of the numbers 0 to num_items - 1 in a random order.

    Each number gets a random key, and the numbers are sorted by their keys. No two keys are equal,
    so the order does not depend on the sorting algorithm.
    """
    return np.argsort(random_words(num_items, rng)).astype(np.int64, copy=False)
