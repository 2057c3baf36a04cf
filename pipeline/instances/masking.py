"""Masks packed instances for masked language modelling.

How many positions are masked, which tokens may be masked, and the 80/10/10 rule are the same as in
google-research/bert (docs/parity.md, section 2). The random draws are different ones. A build masks
16 blocks of instances with one generator. They are called a mask group, and the same instance in
another group would get another mask. When a training run draws masks anew, every instance has its
own seed (docs/order.md, Masks drawn anew).

Shapes: N instances, T packed tokens, M masked positions, W tokens of an instance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.instances.pairs import loops
from pipeline.seeds import Words, random_words, words_at

_GRID_ROWS = 1024  # instances that share a seed; with another number a seed gives other masks
_NEVER = np.uint32(2**32 - 1)  # greater than any key of a token that may be masked
_MASK_BELOW = 8 * 2**32 // 10  # of 2**32: 80 % become [MASK]
_KEEP_BELOW = 9 * 2**32 // 10  # 10 % stay, the others become any id of the vocabulary

_REPLACING = 2**16  # the first of an instance's random words that say what replaces its tokens

SETTINGS = ("masked_lm_prob", "max_predictions", "whole_word_masking")
"""The settings of a build that decide how its instances are masked."""

Ids = npt.NDArray[np.unsignedinteger]


class Keys(NamedTuple):
    """Says how the random keys of the tokens of N instances are computed.

    The tokens of an instance that have the smallest keys are masked. From a seed, SplitMix64 makes
    a sequence of words of 64 bits. Each word has two halves of 32 bits, and each half is the key of
    one token. Half number 2 * k is the low half of word k, and 2 * k + 1 is its high half.

    Attributes:
        seeds: [N] the seed of each instance's keys.
        firsts: [N] the number of the half that is the key of the instance's first token. The token
            at position p has the half number firsts + p.
        position_bits: [N] how many of a key's low bits are replaced by the token's position.
    """

    seeds: Words
    firsts: npt.NDArray[np.int64]
    position_bits: npt.NDArray[np.uint8]


class GroupDraws(NamedTuple):
    """The random draws of a mask group in a build, taken one after another from a generator.

    Attributes:
        rng: The generator of the group.
    """

    rng: Random

    def keys(self, lengths: npt.NDArray[np.int64]) -> Keys:
        """Draws the keys of instances, with one seed for every 1,024 instances.

        Args:
            lengths: [N] the number of tokens of each instance.
        """
        starts = range(0, len(lengths), _GRID_ROWS)
        widths = np.array([lengths[start : start + _GRID_ROWS].max() for start in starts], np.int64)
        seeds = np.array([self.rng.getrandbits(64) for _ in starts], np.uint64)
        position_bits = np.array([int(width - 1).bit_length() for width in widths], np.uint8)
        grid, row = divmod(np.arange(len(lengths)), _GRID_ROWS)
        return Keys(seeds[grid], row * widths[grid], position_bits[grid])

    def words(self, counts: npt.NDArray[np.int64], _first: int) -> Words:
        """Draws random 64-bit words for each instance. No two of the words are equal.

        Args:
            counts: [N] the number of words for each instance.
            _first: Ignored; `InstanceDraws.words` needs it.

        Returns:
            [sum of counts] uint64, the words of the first instance, then those of the second, and
                so on.
        """
        return random_words(int(counts.sum()), self.rng)


class InstanceDraws(NamedTuple):
    """The random draws of instances that have one seed each.

    Other instances that are masked in the same call do not change them.

    Attributes:
        seeds: [N] the seed of each instance.
        position_bits: The number of bits that hold the largest position of any instance; 7 for
            instances of at most 128 tokens.
    """

    seeds: Words
    position_bits: int

    def keys(self, lengths: npt.NDArray[np.int64]) -> Keys:
        """Returns the keys of instances, which begin with the first word of each instance's seed.

        Args:
            lengths: [N] the number of tokens of each instance.
        """
        zeros = np.zeros(len(lengths), np.int64)
        return Keys(self.seeds, zeros, np.full(len(lengths), self.position_bits, np.uint8))

    def words(self, counts: npt.NDArray[np.int64], first: int) -> Words:
        """Returns random 64-bit words for each instance, drawn from the instance's seed.

        Args:
            counts: [N] the number of words for each instance.
            first: The number of the first word that is taken from each seed.

        Returns:
            [sum of counts] uint64, the words of the first instance, then those of the second, and
                so on.
        """
        starts = np.cumsum(counts) - counts - first
        places = np.arange(counts.sum()) - np.repeat(starts, counts)
        return words_at(np.repeat(self.seeds, counts), places.astype(np.uint64))


Draws = GroupDraws | InstanceDraws


@dataclass(frozen=True)
class MaskingRule:
    """The rule by which instances are masked.

    Attributes:
        mask_id: The id of [MASK].
        vocab_size: A random replacement is any id below it.
        max_predictions: The most positions of an instance that may be masked.
        masked_lm_prob: The share of an instance's tokens to mask, the three special ones counted:
            one number for all instances, or [N] one for each.
        is_continuation: [vocab_size] true for ids of pieces that begin with "##". If it is given,
            whole words are masked; None masks single tokens.
    """

    mask_id: int
    vocab_size: int
    max_predictions: int
    masked_lm_prob: float | npt.NDArray[np.float64] = 0.15
    is_continuation: npt.NDArray[np.bool_] | None = None


def masking_rule(
    settings: Mapping[str, Any], seq_len: int, mask_id: int, is_continuation: npt.NDArray[np.bool_]
) -> MaskingRule:
    """Returns the rule for instances of one length.

    Args:
        settings: The settings of a build, or those in a manifest.
        seq_len: The most tokens of an instance.
        mask_id: The id of [MASK].
        is_continuation: [vocab_size] true for ids of pieces that begin with "##".
    """
    return MaskingRule(
        mask_id,
        len(is_continuation),
        most_predictions(settings, seq_len),
        settings["masked_lm_prob"],
        is_continuation if settings["whole_word_masking"] else None,
    )


def most_predictions(settings: Mapping[str, Any], seq_len: int) -> int:
    """Returns the largest number of positions that may be masked in an instance.

    Args:
        settings: The settings of a build, or those in a manifest. If `max_predictions` is not set,
            the number follows from masked_lm_prob.
        seq_len: The most tokens of an instance.
    """
    max_predictions: int | None = settings["max_predictions"]
    return max_predictions or math.ceil(seq_len * settings["masked_lm_prob"])


@dataclass(frozen=True)
class MaskedInstances:
    """N instances after masking.

    Attributes:
        input_ids: [T] tokens, of which masked ones are replaced.
        masked_lm_positions: [M] masked positions, counted from the instance's [CLS], and ascending
            in each instance.
        masked_lm_ids: [M] the original tokens at these positions.
        masked_offsets: [N + 1] the index in `masked_lm_positions` of each instance's first masked
            position, and M at the end.
    """

    input_ids: Ids
    masked_lm_positions: npt.NDArray[np.uint16]
    masked_lm_ids: Ids
    masked_offsets: npt.NDArray[np.int32]


def mask_instances(
    input_ids: Ids,
    offsets: npt.NDArray[np.int64],
    segment_a_length: npt.NDArray[np.uint16],
    rule: MaskingRule,
    draws: Draws,
) -> MaskedInstances:
    """Masks N packed instances [CLS] A [SEP] B [SEP] or [CLS] A [SEP] (docs/parity.md, section 2).

    Args:
        input_ids: [T] tokens of all instances end to end; changed in place.
        offsets: [N + 1] the index of the first token of each instance, and T at the end.
        segment_a_length: [N] the number of tokens of [CLS] A [SEP].
        rule: The rule by which instances are masked.
        draws: The random draws.
    """
    counts = count_predictions(np.diff(offsets), segment_a_length, rule)
    if rule.is_continuation is None:
        chosen_M = _choose_tokens(offsets, segment_a_length, counts, draws)
    else:
        continues = rule.is_continuation[input_ids]
        chosen_M = _choose_words(continues, offsets, segment_a_length, counts, draws)
    masked_offsets = np.searchsorted(chosen_M, offsets).astype(np.int32)
    num_masked = np.diff(masked_offsets)
    positions_M = chosen_M - np.repeat(offsets[:-1], num_masked)
    masked_lm_ids = input_ids[chosen_M]
    input_ids[chosen_M] = _replace(masked_lm_ids, rule, draws.words(num_masked, _REPLACING))
    return MaskedInstances(input_ids, positions_M.astype(np.uint16), masked_lm_ids, masked_offsets)


def count_predictions(
    lengths: npt.NDArray[np.integer], segment_a_length: npt.NDArray[np.integer], rule: MaskingRule
) -> npt.NDArray[np.int64]:
    """Returns the number of positions to mask in each instance: [N] (docs/parity.md 2.3).

    The number is the instance's length times masked_lm_prob, rounded; a half is rounded to the even
    number. It is at least 1, and at most `max_predictions` and the number of tokens that are not
    special. If whole words are masked, fewer positions may be masked in the end, because the words
    that are left may be too long.

    Args:
        lengths: [N] the number of tokens of each instance.
        segment_a_length: [N] the number of tokens of [CLS] A [SEP].
        rule: The rule by which instances are masked.
    """
    counts = np.rint(lengths * rule.masked_lm_prob)
    num_specials = np.where(segment_a_length < lengths, 3, 2)  # [CLS] and one [SEP] per segment
    most = np.minimum(lengths - num_specials, rule.max_predictions)
    clipped: npt.NDArray[np.int64] = np.clip(counts, 1, most).astype(np.int64)
    return clipped


def _choose_tokens(
    offsets: npt.NDArray[np.integer],
    segment_a_length: npt.NDArray[np.uint16],
    counts: npt.NDArray[np.int64],
    draws: Draws,
) -> npt.NDArray[np.int64]:
    """Chooses the tokens to mask: those of each instance that have the smallest random keys.

    Args:
        offsets: [N + 1] the index of the first token of each instance, and at the end T, the number
            of all tokens.
        segment_a_length: [N] the number of tokens of [CLS] A [SEP].
        counts: [N] the number of positions to mask.
        draws: The random draws.

    Returns:
        [M] ascending indices into the T tokens.
    """
    lengths = np.diff(offsets)
    keys = draws.keys(lengths)
    if loops:
        chosen_M = np.empty(counts.sum() + 1, np.int64)  # the compiled loop needs one entry more
        starts = offsets.astype(np.int64)
        loops.choose_tokens(starts, segment_a_length, counts, *keys, chosen_M)
        return chosen_M[:-1]

    chosen = [np.zeros(0, np.int64)]
    spans = zip(offsets[:-1].tolist(), lengths.tolist(), segment_a_length.tolist(), strict=True)
    for row, (start, length, a_length) in enumerate(spans):
        numbers_W = keys.firsts[row] + np.arange(length - 1)  # the last [SEP] gets no key
        keys_W = _draw_keys(numbers_W, keys.seeds[row : row + 1], keys.position_bits[row])
        keys_W[:1] = _NEVER  # [CLS]
        keys_W[a_length - 1 : a_length] = _NEVER  # the first [SEP], if it is not the last
        chosen.append(start + np.sort(keys_W.argsort()[: counts[row]]))
    return np.concatenate(chosen)


def _draw_keys(
    numbers: npt.NDArray[np.int64], seed: Words, position_bits: np.uint8
) -> npt.NDArray[np.uint32]:
    """Returns the keys of an instance's tokens: [W] uint32 (`Keys`).

    The low bits of a key are replaced by the token's position. So no two keys are equal, and every
    sorting algorithm gives the same order. At 512 tokens this leaves 23 random bits. In one of
    16,000 instances two tokens have the same random bits and only one of them is masked; then it is
    the earlier one.

    Args:
        numbers: [W] which half of the words of the seed is the key of each token.
        seed: [1] the seed of the instance's keys.
        position_bits: How many low bits are replaced.
    """
    words = words_at(seed, numbers.astype(np.uint64) // 2)
    half_words = (words >> (numbers.astype(np.uint64) % 2 * 32)).astype(np.uint32)
    high_bits = half_words >> np.uint32(position_bits) << np.uint32(position_bits)
    return high_bits | np.arange(len(numbers), dtype=np.uint32)


def _choose_words(
    continues: npt.NDArray[np.bool_],
    offsets: npt.NDArray[np.int64],
    segment_a_length: npt.NDArray[np.uint16],
    counts: npt.NDArray[np.int64],
    draws: Draws,
) -> npt.NDArray[np.int64]:
    """Chooses whole words to mask. No word goes on from segment A to B (docs/parity.md 5).

    Args:
        continues: [T] whether each token continues a word.
        offsets: [N + 1] the index of the first token of each instance, and T at the end.
        segment_a_length: [N] the number of tokens of [CLS] A [SEP].
        counts: [N] the most positions to mask.
        draws: The random draws.

    Returns:
        [M] ascending indices into the T tokens.
    """
    is_special = np.zeros(len(continues), np.bool_)
    is_special[offsets[:-1]] = True
    is_special[offsets[1:] - 1] = True
    is_special[offsets[:-1] + segment_a_length - 1] = True
    starts_word = ~is_special & ~continues
    starts_word[1:] |= is_special[:-1] & ~is_special[1:]
    word_of_token = np.cumsum(starts_word) - 1
    word_lengths = np.bincount(word_of_token[~is_special])
    word_offsets = np.searchsorted(np.flatnonzero(starts_word), offsets)
    is_chosen = _take_words(word_lengths, word_offsets, counts, draws)
    return np.flatnonzero(is_chosen[word_of_token] & ~is_special)


def _take_words(
    word_lengths: npt.NDArray[np.int64],
    word_offsets: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    draws: Draws,
) -> npt.NDArray[np.bool_]:
    """Chooses words of each instance in random order until enough tokens are chosen.

    If a word has more tokens than may still be chosen, it is not chosen, and the next word is tried
    (docs/parity.md 2.4).

    Args:
        word_lengths: [words] the number of tokens of each word, of all instances end to end.
        word_offsets: [N + 1] the index of the first word of each instance, and the number of all
            words at the end.
        counts: [N] the most tokens to choose in each instance.
        draws: The random draws.

    Returns:
        [words] whether each word is chosen.
    """
    num_words = np.diff(word_offsets)
    left = counts.copy()
    places = np.arange(num_words.max(initial=0))
    is_word_NW = places < num_words[:, None]
    keys_NW = np.full(is_word_NW.shape, np.iinfo(np.uint64).max)
    keys_NW[is_word_NW] = draws.words(num_words, 0)
    order_NW = keys_NW.argsort(axis=1) + word_offsets[:-1, None]

    is_chosen = np.zeros(len(word_lengths), np.bool_)
    rows = np.arange(len(counts))
    for place in places:  # looks at one more word of every instance that is not full
        rows = rows[(left[rows] > 0) & (place < num_words[rows])]
        words = order_NW[rows, place]
        fits = word_lengths[words] <= left[rows]
        is_chosen[words] = fits
        left[rows] -= word_lengths[words] * fits
    return is_chosen


def _replace(tokens_M: Ids, rule: MaskingRule, draws_M: Words) -> Ids:
    """Returns the tokens that replace masked tokens (docs/parity.md 2.5).

    80 % of them are [MASK], 10 % the token itself, and 10 % any id of the vocabulary.

    Args:
        tokens_M: The original tokens.
        rule: The rule by which instances are masked.
        draws_M: A random word for each token. Its low half decides between the three, its high half
            the id. Some ids are more likely than others, but by less than vocab_size / 2**32.
    """
    which = draws_M.astype(np.uint32)
    shown = np.where(which < _MASK_BELOW, tokens_M.dtype.type(rule.mask_id), tokens_M)
    any_id = np.flatnonzero(which >= _KEEP_BELOW)
    shown[any_id] = (draws_M[any_id] >> np.uint64(32)) * np.uint64(rule.vocab_size) >> np.uint64(32)
    return shown
