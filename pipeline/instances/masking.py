"""Masks for masked language modelling, for a run of packed instances at once.

Counts, candidates and the 80/10/10 rule are those of docs/parity.md section 2. The draws are our
own. Those of a build depend on the whole run: the same instances in other runs get other masks.

Shapes: N instances, T packed tokens, M masked positions, W tokens of an instance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.instances.pairs import NUM_SPECIAL_TOKENS, loops
from pipeline.seeds import Words, random_words, words_at

_GRID_ROWS = 1024  # instances drawn for at a time; part of what a seed means
_NEVER = np.uint32(2**32 - 1)  # greater than any key of a token that may be masked
_MASK_BELOW = 8 * 2**32 // 10  # of 2**32: 80 % become [MASK]
_KEEP_BELOW = 9 * 2**32 // 10  # 10 % stay, the rest become any id of the vocabulary

_REPLACING = 2**16  # an instance's words from here on say what stands at its masked positions

SETTINGS = ("masked_lm_prob", "max_predictions", "whole_word_masking")
"""The settings of a build that decide how its instances are masked."""

Ids = npt.NDArray[np.unsignedinteger]


class Keys(NamedTuple):
    """Where the keys of instances are: from number `firsts` on of the half-words of a seed."""

    seeds: Words  # [N]
    firsts: npt.NDArray[np.int64]  # [N]
    position_bits: npt.NDArray[np.uint8]  # [N], low bits of a key that hold the position


class RunDraws(NamedTuple):
    """What a run is masked by: one draw after another of a generator."""

    rng: Random

    def keys(self, lengths: npt.NDArray[np.int64]) -> Keys:
        """Those of instances of so many tokens, a seed for each grid of them."""
        starts = range(0, len(lengths), _GRID_ROWS)
        widths = np.array([lengths[start : start + _GRID_ROWS].max() for start in starts], np.int64)
        seeds = np.array([self.rng.getrandbits(64) for _ in starts], np.uint64)
        position_bits = np.array([int(width - 1).bit_length() for width in widths], np.uint8)
        grid, row = divmod(np.arange(len(lengths)), _GRID_ROWS)
        return Keys(seeds[grid], row * widths[grid], position_bits[grid])

    def words(self, counts: npt.NDArray[np.int64], _first: int) -> Words:
        """So many words of each row, one row after another, all different."""
        return random_words(int(counts.sum()), self.rng)


class InstanceDraws(NamedTuple):
    """What instances are masked by, each by words of its own, whichever run it comes in.

    Attributes:
        seeds: [N], the instances' own.
        position_bits: Bits of any position of their length.
    """

    seeds: Words
    position_bits: int

    def keys(self, lengths: npt.NDArray[np.int64]) -> Keys:
        """As RunDraws.keys, from the first word of each instance on."""
        zeros = np.zeros(len(lengths), np.int64)
        return Keys(self.seeds, zeros, np.full(len(lengths), self.position_bits, np.uint8))

    def words(self, counts: npt.NDArray[np.int64], first: int) -> Words:
        """As RunDraws.words, each row's from its word number `first` on."""
        starts = np.cumsum(counts) - counts - first
        places = np.arange(counts.sum()) - np.repeat(starts, counts)
        return words_at(np.repeat(self.seeds, counts), places.astype(np.uint64))


Draws = RunDraws | InstanceDraws


@dataclass(frozen=True)
class MaskingRule:
    """What to mask, and with what.

    Attributes:
        mask_id: Id of [MASK].
        vocab_size: A random replacement is any id below it.
        max_predictions: The most positions an instance may have masked.
        masked_lm_prob: Share of an instance's tokens to mask, the three special ones counted; one
            for all, or [N] of each.
        is_continuation: [vocab_size], true for ids of "##" pieces: given, whole words are masked.
    """

    mask_id: int
    vocab_size: int
    max_predictions: int
    masked_lm_prob: float | npt.NDArray[np.float64] = 0.15
    is_continuation: npt.NDArray[np.bool_] | None = None


def masking_rule(
    settings: Mapping[str, Any], seq_len: int, mask_id: int, is_continuation: npt.NDArray[np.bool_]
) -> MaskingRule:
    """The rule for instances of one length; `settings` of a build or of its manifest."""
    return MaskingRule(
        mask_id,
        len(is_continuation),
        most_predictions(settings, seq_len),
        settings["masked_lm_prob"],
        is_continuation if settings["whole_word_masking"] else None,
    )


def most_predictions(settings: Mapping[str, Any], seq_len: int) -> int:
    """The most masked positions of an instance of one length; `settings` as in `masking_rule`."""
    given: int | None = settings["max_predictions"]
    return given or math.ceil(seq_len * settings["masked_lm_prob"])


@dataclass(frozen=True)
class MaskedRun:
    """A run after masking; positions ascend inside each instance."""

    input_ids: Ids  # [T]
    masked_lm_positions: npt.NDArray[np.uint16]  # [M], inside the instance
    masked_lm_ids: Ids  # [M], the tokens that stood there
    masked_offsets: npt.NDArray[np.int32]  # [N + 1]


def mask_run(
    input_ids: Ids,
    offsets: npt.NDArray[np.int64],
    segment_a_length: npt.NDArray[np.uint16],
    rule: MaskingRule,
    draws: Draws,
) -> MaskedRun:
    """Masks N packed instances [CLS] A [SEP] B [SEP], in place.

    Given are [T] tokens, [N + 1] where instances start, and [N] tokens of [CLS] A [SEP].
    """
    counts = count_predictions(np.diff(offsets), rule)
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
    return MaskedRun(input_ids, positions_M.astype(np.uint16), masked_lm_ids, masked_offsets)


def count_predictions(lengths: npt.NDArray[np.integer], rule: MaskingRule) -> npt.NDArray[np.int64]:
    """[N] positions to mask in instances of so many tokens; half rounds to even (2.3)."""
    counts = np.rint(lengths * rule.masked_lm_prob)
    most = np.minimum(lengths - NUM_SPECIAL_TOKENS, rule.max_predictions)
    clipped: npt.NDArray[np.int64] = np.clip(counts, 1, most).astype(np.int64)
    return clipped


def _choose_tokens(
    offsets: npt.NDArray[np.integer],
    segment_a_length: npt.NDArray[np.uint16],
    counts: npt.NDArray[np.int64],
    draws: Draws,
) -> npt.NDArray[np.int64]:
    """[M] ascending indices of the tokens with the smallest keys of each instance."""
    lengths = np.diff(offsets)
    keys = draws.keys(lengths)
    if loops:
        chosen_M = np.empty(counts.sum() + 1, np.int64)
        starts = offsets.astype(np.int64)
        loops.choose_tokens(starts, segment_a_length, counts, *keys, chosen_M)
        return chosen_M[:-1]
    chosen = [np.zeros(0, np.int64)]
    ends = zip(offsets[:-1].tolist(), lengths.tolist(), segment_a_length.tolist(), strict=True)
    for row, (start, length, a_length) in enumerate(ends):
        numbers_W = keys.firsts[row] + np.arange(length - 1)
        keys_W = _draw_keys(numbers_W, keys.seeds[row : row + 1], keys.position_bits[row])
        keys_W[[0, a_length - 1]] = _NEVER  # specials, as the last one is left out
        chosen.append(start + np.sort(keys_W.argsort()[: counts[row]]))
    return np.concatenate(chosen)


def _draw_keys(
    numbers: npt.NDArray[np.int64], seed: Words, position_bits: np.uint8
) -> npt.NDArray[np.uint32]:
    """Half-words of a seed, with the position in their low bits: no sorting can change their order.

    That leaves 23 random bits at 512 tokens: a tie decides one position in 16,000 instances, for
    the earlier one.
    """
    words = words_at(seed, numbers.astype(np.uint64) // 2)
    drawn = (words >> (numbers.astype(np.uint64) % 2 * 32)).astype(np.uint32)
    kept = drawn >> np.uint32(position_bits) << np.uint32(position_bits)
    return kept | np.arange(len(numbers), dtype=np.uint32)


def _choose_words(
    continues: npt.NDArray[np.bool_],
    offsets: npt.NDArray[np.int64],
    segment_a_length: npt.NDArray[np.uint16],
    counts: npt.NDArray[np.int64],
    draws: Draws,
) -> npt.NDArray[np.int64]:
    """[M] ascending indices of masked words' tokens; words end with segments (docs/parity.md 5)."""
    is_special = np.zeros(len(continues), np.bool_)
    is_special[offsets[:-1]] = is_special[offsets[1:] - 1] = True
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
    """Words in random order until the count is full; one that does not fit is passed over (2.4)."""
    num_words, left = np.diff(word_offsets), counts.copy()
    places = np.arange(num_words.max(initial=0))
    is_word_NW = places < num_words[:, None]
    keys_NW = np.full(is_word_NW.shape, np.iinfo(np.uint64).max)
    keys_NW[is_word_NW] = draws.words(num_words, 0)
    order_NW = keys_NW.argsort(axis=1) + word_offsets[:-1, None]
    is_chosen, rows = np.zeros(len(word_lengths), np.bool_), np.arange(len(counts))
    for place in places:  # one word of every instance that is not full
        rows = rows[(left[rows] > 0) & (place < num_words[rows])]
        words = order_NW[rows, place]
        is_chosen[words] = fits = word_lengths[words] <= left[rows]
        left[rows] -= word_lengths[words] * fits
    return is_chosen


def _replace(tokens_M: Ids, rule: MaskingRule, draws_M: Words) -> Ids:
    """80 % [MASK], 10 % the token itself, 10 % any id (2.5).

    A token takes 64 bits, half to say which of them and half for the id, whose bias is below
    vocab_size / 2**32.
    """
    which = draws_M.astype(np.uint32)
    shown = np.where(which < _MASK_BELOW, tokens_M.dtype.type(rule.mask_id), tokens_M)
    any_id = np.flatnonzero(which >= _KEEP_BELOW)
    shown[any_id] = (draws_M[any_id] >> np.uint64(32)) * np.uint64(rule.vocab_size) >> np.uint64(32)
    return shown
