"""Computes MinHash signatures, by which the similarity of documents is estimated.

A shingle of a document is any 5 consecutive words, with ASCII letters in lower case. Each shingle
is hashed to a number of 32 bits. There are 128 fixed permutations of these numbers. A signature has
128 places, one for each permutation: the permutation is applied to the hashes of all shingles, and
the place holds the least result. The share of places at which two signatures are equal estimates
the Jaccard similarity J of the two sets of shingles, with standard deviation sqrt(J (1 - J) / 128).

The places of a signature are divided into bands, and only documents that agree on a whole band are
compared. They are compared by sketches, which keep four bits of each place.

All arithmetic is on integers, so signatures are equal on every machine.

Shapes: D documents, N bytes, W words, S shingles, K = 128 permutations.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from pipeline.seeds import seed_of
from pipeline.text.batches import batch_by_size

NUM_HASHES = 128
SHINGLE_WORDS = 5
SIGNATURE_DTYPE = np.dtype("<u2")
SKETCH_BYTES = NUM_HASHES // 2
_BATCH_BYTES = 1 << 19  # few enough that the arrays fit into the processor's cache
_WORD_SPACE = 32
# First bytes of ideographs and kana in UTF-8: U+3000 to U+9FFF.
_FIRST_IDEOGRAPH_BYTE = 0xE3
_LAST_IDEOGRAPH_BYTE = 0xE9
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that its powers have inverses modulo 2^64

Hashes = npt.NDArray[np.uint64]


def sign_texts(texts: Sequence[str]) -> npt.NDArray[np.uint16]:
    """Returns the signatures of D texts: [D, K] uint16.

    Each of the K numbers of a signature keeps only its low 16 bits. Every ideograph or kana is a
    word of its own. If a text has fewer than 5 words, all its words together are its only shingle.

    Args:
        texts: Cleaned texts, none of them empty.
    """
    if not texts:
        return np.zeros((0, NUM_HASHES), SIGNATURE_DTYPE)
    data = (text.encode().lower().replace(b"\n", b" ") for text in texts)
    signed = [_sign_batch(batch) for batch in batch_by_size(data, len, _BATCH_BYTES)]
    return np.concatenate(signed).astype(SIGNATURE_DTYPE)


def sketch_signatures(signatures: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Shortens signatures to sketches, which `count_matches` compares.

    A sketch has the low four bits of each place of the signature.

    Args:
        signatures: [D, K] uint16.

    Returns:
        [D, K / 2] uint8, two places in each byte, the first of them in the low four bits.
    """
    low = (signatures & 15).astype(np.uint8)
    return np.asarray(low[:, ::2] | low[:, 1::2] << 4, np.uint8)


def count_matches(
    left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """Returns [P] the number of equal places in each of P pairs of sketches.

    Args:
        left: [P, K / 2] the first sketch of each pair.
        right: [P, K / 2] the second sketch of each pair.
    """
    differing = left ^ right
    equal = np.count_nonzero(differing & 15 == 0, axis=1) + np.count_nonzero(differing < 16, axis=1)
    return np.asarray(equal, np.int64)


def similarity_of(matches: int) -> float:
    """Returns the estimated Jaccard similarity of two texts, given their sketches.

    One in 16 places is equal by chance, because a place of a sketch has four bits.

    Args:
        matches: The number of places at which the two sketches are equal.
    """
    return max(0.0, (matches / NUM_HASHES - 1 / 16) / (1 - 1 / 16))


def matches_for(similarity: float) -> int:
    """Returns the least number of matches whose `similarity_of` is at least `similarity`."""
    numbers = range(NUM_HASHES + 1)
    return next(matches for matches in numbers if similarity_of(matches) >= similarity - 1e-9)


def choose_bands(threshold: float) -> tuple[int, int]:
    """Returns the number of bands of a signature, and the number of rows (places) of each band.

    A band has as many rows as possible, such that 99 % of the pairs of documents with similarity
    `threshold` agree on all rows of at least one band. For 0.8 there are 21 bands of 6 rows.
    """
    shapes = [(NUM_HASHES // rows, rows) for rows in range(NUM_HASHES, 0, -1)]
    return next(shape for shape in shapes if share_band_probability(threshold, *shape) >= 0.99)


def share_band_probability(similarity: float, bands: int, rows: int) -> float:
    """Returns the probability that two documents agree on all rows of at least one band.

    Args:
        similarity: The Jaccard similarity of the two documents.
        bands: The number of bands.
        rows: The number of rows of each band.
    """
    return float(1 - (1 - similarity**rows) ** bands)


def band_keys(signatures: npt.NDArray[np.uint16], bands: int, rows: int) -> Hashes:
    """Returns a key of each document for each band: [D, bands] uint64.

    Two documents have the same key for a band if they agree on all rows of the band. Otherwise they
    have the same key only if two hashes of 64 bits happen to be equal.

    Args:
        signatures: [D, K] the signatures of the documents.
        bands: The number of bands.
        rows: The number of rows of each band.
    """
    used = signatures[:, : bands * rows].astype(np.uint64).reshape(len(signatures), bands, rows)
    factors = _constants("row", rows) | np.uint64(1)
    return _mix((used * factors).sum(axis=2, dtype=np.uint64) + _constants("band", bands))


def _sign_batch(batch: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Returns [D, K] the signatures of some texts, with all 32 bits of each place."""
    shingles, starts = _hash_shingles(batch)
    numbers = (shingles >> np.uint64(32)).astype(np.uint32)
    permuted = np.empty_like(numbers)
    least = np.empty((len(batch), NUM_HASHES), np.uint32)
    factors, offsets = _permutations()
    for place in range(NUM_HASHES):
        np.multiply(numbers, factors[place], out=permuted)
        np.add(permuted, offsets[place], out=permuted)
        least[:, place] = np.minimum.reduceat(permuted, starts)
    return least


def _hash_shingles(batch: Sequence[bytes]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Hashes all shingles of some texts.

    Args:
        batch: D texts in lower case, without line ends.

    Returns:
        The hashes of all shingles, text after text: [S] uint64. And the index of the first hash of
        each text: [D].
    """
    data = np.frombuffer(b" ".join(batch), np.uint8)
    first_bytes = np.cumsum([0, *(len(text) + 1 for text in batch)])
    starts, ends = _find_words(data)
    first_words = np.searchsorted(starts, first_bytes)
    num_words = np.diff(first_words)
    num_shingles = np.maximum(num_words - SHINGLE_WORDS + 1, 1)
    first_shingles = np.cumsum(num_shingles) - num_shingles

    # The first and the last word of each shingle.
    shift = np.repeat(first_words[:-1] - first_shingles, num_shingles)
    first_of_shingle = np.arange(len(shift)) + shift
    num_in_shingle = np.repeat(np.minimum(num_words, SHINGLE_WORDS), num_shingles)
    last_of_shingle = first_of_shingle + num_in_shingle - 1

    sums = sum_powers(_constants("byte", 256)[data])
    inverses = inverse_powers(len(data))
    start_bytes = starts[first_of_shingle]
    end_bytes = ends[last_of_shingle]
    return _mix((sums[end_bytes] - sums[start_bytes]) * inverses[start_bytes]), first_shingles


def sum_powers(values: Hashes) -> Hashes:
    """Returns sums from which the hash of any slice of an array follows by one subtraction.

    With a fixed odd number m, sums[i] is the sum of values[k] * m^k for all k < i, modulo 2^64. The
    hash of values[i:j] is (sums[j] - sums[i]) * inverse_powers(N)[i]. Equal slices have equal
    hashes, wherever in the array they begin.

    Args:
        values: [N] the values.

    Returns:
        [N + 1] the sums.
    """
    products = values * _powers(_MULTIPLIER, len(values))
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)])


def inverse_powers(count: int) -> Hashes:
    """Returns the inverses of the powers m^0, m^1, ... modulo 2^64, for the m of `sum_powers`.

    Args:
        count: The number of powers.

    Returns:
        [count] uint64. The product of element i and m^i is 1 modulo 2^64.
    """
    return _powers(pow(_MULTIPLIER, -1, 1 << 64), count)


def _find_words(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds the words in the bytes of texts.

    Words are separated by spaces. Every ideograph or kana is a word of its own.

    Args:
        data: [N] the bytes of all texts, with a space between two texts.

    Returns:
        The position of each word's first byte: [W]. And the position after its last byte: [W].
    """
    is_space = data == _WORD_SPACE
    cuts = np.zeros(len(data) + 1, bool)  # whether a word begins or ends before each byte
    cuts[0] = True
    cuts[-1] = True
    cuts[:-1] |= is_space
    cuts[1:] |= is_space
    ideographs = np.flatnonzero((data >= _FIRST_IDEOGRAPH_BYTE) & (data <= _LAST_IDEOGRAPH_BYTE))
    cuts[ideographs] = True
    cuts[np.minimum(ideographs + 3, len(data))] = True
    bounds = np.flatnonzero(cuts)
    is_word = ~is_space[bounds[:-1]]
    return bounds[:-1][is_word], bounds[1:][is_word]


def _mix(values: Hashes) -> Hashes:
    """Hashes numbers by the last steps of SplitMix64, so that each bit depends on all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


@cache
def _constants(name: str, count: int) -> Hashes:
    """Returns `count` pseudo-random constants of 64 bits: [count].

    They depend on `name` and on their index alone, so they are the same in every build.
    """
    names = (f"near-duplicates/{name}/{number}" for number in range(count))
    return np.array([seed_of(constant, num_bytes=8) for constant in names], np.uint64)


@cache
def _permutations() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Returns the factors and the summands of the permutations: [K] and [K].

    A permutation maps x to factor * x + summand modulo 2^32. All factors are odd, because otherwise
    two numbers would be mapped to the same one.
    """
    factors = (_constants("factor", NUM_HASHES) >> np.uint64(32)).astype(np.uint32)
    summands = (_constants("summand", NUM_HASHES) >> np.uint64(32)).astype(np.uint32)
    return factors | np.uint32(1), summands


def _powers(base: int, count: int) -> Hashes:
    """Returns [count] the powers 1, base, base^2 ... modulo 2^64."""
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
