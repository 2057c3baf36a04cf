"""MinHash signatures of documents: how alike two texts are, from 256 bytes of each.

A document's shingles are its runs of 5 words, lower-cased (ASCII). Its signature is, for each of
128 permutations of the 32-bit numbers, the least image of a shingle's hash: the share of equal
places in two signatures estimates the Jaccard similarity of the two sets of shingles, with standard
deviation sqrt(J (1 - J) / 128). All is integer arithmetic: equal on every machine.

D documents, N bytes, W words, S shingles, K = 128 permutations.
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
_BATCH_BYTES = 1 << 19  # arrays that the processor's cache holds
_WORD_SPACE = 32
_FIRST_IDEOGRAPH_BYTE, _LAST_IDEOGRAPH_BYTE = 0xE3, 0xE9  # of UTF-8: U+3000 to U+9FFF
_MULTIPLIER = 0x9E3779B97F4A7C15

Words = npt.NDArray[np.uint64]


def sign_texts(texts: Sequence[str]) -> npt.NDArray[np.uint16]:
    """[D, K] uint16, the low 16 bits of each least image, of cleaned texts that are not empty.

    An ideograph or kana is a word of its own. A text of fewer than 5 words is one shingle.
    """
    if not texts:
        return np.zeros((0, NUM_HASHES), SIGNATURE_DTYPE)
    data = (text.encode().lower().replace(b"\n", b" ") for text in texts)
    signed = [_sign_batch(batch) for batch in batch_by_size(data, len, _BATCH_BYTES)]
    return np.concatenate(signed).astype(SIGNATURE_DTYPE)


def sketch_signatures(signatures: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """[D, K] signatures to [D, K / 2] bytes, four bits of each place, for `count_matches`."""
    low = (signatures & 15).astype(np.uint8)
    return np.asarray(low[:, ::2] | low[:, 1::2] << 4, np.uint8)


def count_matches(
    left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """[P] equal places of the P pairs of sketches, [P, K / 2] each."""
    differing = left ^ right
    equal = np.count_nonzero(differing & 15 == 0, axis=1) + np.count_nonzero(differing < 16, axis=1)
    return np.asarray(equal, np.int64)


def similarity_of(matches: int) -> float:
    """The estimated Jaccard similarity: of four bits one in 16 is equal by chance."""
    return max(0.0, (matches / NUM_HASHES - 1 / 16) / (1 - 1 / 16))


def matches_for(similarity: float) -> int:
    """The least number of equal places whose estimate is at least `similarity`."""
    numbers = range(NUM_HASHES + 1)
    return next(each for each in numbers if similarity_of(each) >= similarity - 1e-9)


def choose_bands(threshold: float) -> tuple[int, int]:
    """Bands and the rows of each: the most rows with which 99 % of such pairs share a band.

    At 0.8 these are 21 bands of 6 rows.
    """
    shapes = [(NUM_HASHES // rows, rows) for rows in range(NUM_HASHES, 0, -1)]
    return next(shape for shape in shapes if share_band_probability(threshold, *shape) >= 0.99)


def share_band_probability(similarity: float, bands: int, rows: int) -> float:
    """Probability that two documents of some similarity agree on all rows of at least one band."""
    return float(1 - (1 - similarity**rows) ** bands)


def band_keys(signatures: npt.NDArray[np.uint16], bands: int, rows: int) -> Words:
    """[D, bands] uint64, equal where two documents agree on the rows of a band, and only there."""
    used = signatures[:, : bands * rows].astype(np.uint64).reshape(len(signatures), bands, rows)
    factors = _constants("row", rows) | np.uint64(1)
    return _mix((used * factors).sum(axis=2, dtype=np.uint64) + _constants("band", bands))


def _sign_batch(batch: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """[D, K] least images."""
    shingles, starts = _hash_shingles(batch)
    numbers = (shingles >> np.uint64(32)).astype(np.uint32)
    images = np.empty_like(numbers)
    least = np.empty((len(batch), NUM_HASHES), np.uint32)
    factors, offsets = _permutations()
    for place in range(NUM_HASHES):
        np.multiply(numbers, factors[place], out=images)
        np.add(images, offsets[place], out=images)
        least[:, place] = np.minimum.reduceat(images, starts)
    return least


def _hash_shingles(batch: Sequence[bytes]) -> tuple[Words, npt.NDArray[np.int64]]:
    """[S] hashes of all shingles of some texts, and [D] where each text's begin."""
    data = np.frombuffer(b" ".join(batch), np.uint8)
    first_bytes = np.cumsum([0, *(len(text) + 1 for text in batch)])
    starts, ends = _find_words(data)
    first_words = np.searchsorted(starts, first_bytes)
    num_words = np.diff(first_words)
    num_shingles = np.maximum(num_words - SHINGLE_WORDS + 1, 1)
    first_shingles = np.cumsum(num_shingles) - num_shingles
    shift = np.repeat(first_words[:-1] - first_shingles, num_shingles)
    begins = np.arange(len(shift)) + shift
    finishes = begins + np.repeat(np.minimum(num_words, SHINGLE_WORDS), num_shingles) - 1
    sums, inverses = sum_powers(_constants("byte", 256)[data]), inverse_powers(len(data))
    firsts = starts[begins]
    return _mix((sums[ends[finishes]] - sums[firsts]) * inverses[firsts]), first_shingles


def sum_powers(values: Words) -> Words:
    """[N + 1] running sums of N values times the powers of an odd number, modulo 2^64.

    The difference of two of them, times the inverse of the power that a run begins at, is a hash of
    the run of values: equal wherever it stands.
    """
    products = values * _powers(_MULTIPLIER, len(values))
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)])


def inverse_powers(count: int) -> Words:
    """[count] inverses of the powers that `sum_powers` takes."""
    return _powers(pow(_MULTIPLIER, -1, 1 << 64), count)


def _find_words(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[W] first byte of each word and [W] one after its last."""
    is_space = data == _WORD_SPACE
    cuts = np.zeros(len(data) + 1, bool)  # a word begins or ends before this byte
    cuts[0] = cuts[-1] = True
    cuts[:-1] |= is_space
    cuts[1:] |= is_space
    ideographs = np.flatnonzero((data >= _FIRST_IDEOGRAPH_BYTE) & (data <= _LAST_IDEOGRAPH_BYTE))
    cuts[ideographs] = True
    cuts[np.minimum(ideographs + 3, len(data))] = True
    bounds = np.flatnonzero(cuts)
    is_word = ~is_space[bounds[:-1]]
    return bounds[:-1][is_word], bounds[1:][is_word]


def _mix(values: Words) -> Words:
    """SplitMix64's finalizer: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = values ^ (values >> np.uint64(31))
    return mixed


@cache
def _constants(name: str, count: int) -> Words:
    names = (f"near-duplicates/{name}/{number}" for number in range(count))
    return np.array([seed_of(each, num_bytes=8) for each in names], np.uint64)


@cache
def _permutations() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """[K] odd factors and [K] summands: x -> factor * x + summand is one to one modulo 2^32."""
    drawn = (_constants(name, NUM_HASHES) >> np.uint64(32) for name in ("factor", "summand"))
    factors, summands = (each.astype(np.uint32) for each in drawn)
    return factors | np.uint32(1), summands


def _powers(base: int, count: int) -> Words:
    """[count] 1, base, base^2 ... modulo 2^64."""
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)
