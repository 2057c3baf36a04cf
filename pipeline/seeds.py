"""Keyed randomness: every draw comes from a generator seeded by what it decides.

Draws are by ``getrandbits`` and ``random`` only, whose streams do not change: ``randint``,
``shuffle`` and numpy's generators may change with a version, and the dataset with them.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def seed_for(seed: int, purpose: str, pass_index: int, id_hex: str) -> int:
    """The 128-bit seed of a `purpose` such as "pairs-L128"; `id_hex` of a document or bucket."""
    return seed_of(f"{seed}/{purpose}/{pass_index}/{id_hex}")


def seed_of(key: str, num_bytes: int = 16) -> int:
    """The seed of a key such as "7/weights/embeddings.weight": its blake2b, little-endian."""
    return int.from_bytes(blake2b(key.encode(), digest_size=num_bytes).digest(), "little")


def draw_below(limit: int, getrandbits: Callable[[int], int]) -> int:
    """A uniform integer in [0, limit), by the draws of CPython's ``randint(0, limit - 1)``."""
    num_bits = limit.bit_length()
    value = getrandbits(num_bits)
    while value >= limit:
        value = getrandbits(num_bits)
    return value


def random_words(num_words: int, rng: Random) -> Words:
    """[num_words] uniform 64-bit integers, all different: SplitMix64 from 64 bits of `rng`.

    (Steele, Lea and Flood, 2014.)
    """
    words = np.arange(1, num_words + 1, dtype=np.uint64)
    words *= _GAMMA
    words += np.uint64(rng.getrandbits(64))
    return _mix(words)


def words_at(seeds: Words, places: Words) -> Words:
    """Words number `places` from 0 on that SplitMix64 draws from seeds, which broadcast."""
    return _mix((places + np.uint64(1)) * _GAMMA + seeds)


def _mix(words: Words) -> Words:
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def permutation(num_items: int, rng: Random) -> npt.NDArray[np.int64]:
    """A uniform order of `num_items` items: the indices sorted by random keys, which are unique."""
    return np.argsort(random_words(num_items, rng)).astype(np.int64, copy=False)
