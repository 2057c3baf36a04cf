"""What must hold of every instance of a dataset (docs/parity.md), which `verify --deep` asks.

Shapes: N instances, T tokens, M masked positions.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.instances.masking import SETTINGS, MaskingRule, count_predictions, masking_rule
from pipeline.instances.pairs import NUM_SPECIAL_TOKENS
from pipeline.shards.block import Block
from pipeline.shards.records import Manifest

# A sound group fails once in 10^9: chi-square of 2 degrees of freedom, one side of a normal.
MAX_CHI_SQUARE = 2 * math.log(1e9)
MAX_DEVIATIONS = 6.0

Bools = npt.NDArray[np.bool_]


class InstanceRules(NamedTuple):
    """What instances of one length must obey; [UNK] may stand for words of the text."""

    seq_len: int
    cls_id: int
    sep_id: int
    never_in_text: npt.NDArray[np.int64]  # ids of [PAD], [CLS], [SEP] and [MASK]
    masking: MaskingRule


class Shares(NamedTuple):
    """Counts of what chance decides, summed over blocks."""

    instances: int = 0
    random_next: int = 0
    masked: int = 0
    shown_as_mask: int = 0
    shown_as_original: int = 0


def rules_of(manifest: Manifest, seq_len: int, is_continuation: Bools) -> InstanceRules:
    """The rules of a dataset's instances of one length, out of its manifest.

    is_continuation [vocab_size] is true for pieces that begin with "##".

    Raises:
        ValueError: The manifest's settings do not say how it was masked.
    """
    settings = manifest.settings
    if missing := [name for name in SETTINGS if name not in settings]:
        raise ValueError(
            f"the manifest's settings say nothing of {', '.join(missing)};"
            " instances cannot be checked"
        )
    special = manifest.special_ids
    masking = masking_rule(settings, seq_len, special["mask"], is_continuation)
    never = np.array([special[name] for name in ("pad", "cls", "sep", "mask")], np.int64)
    return InstanceRules(seq_len, special["cls"], special["sep"], never, masking)


def find_violations(block: Block, rules: InstanceRules) -> Iterator[str]:
    """Says of each broken rule how many instances break it and which is the first.

    Rules of the tokens are asked only where lengths and positions are sound.
    """
    broken = list(_broken_shape(block, rules))
    if not any(rows.any() for _, rows in broken):
        broken += [*_broken_tokens(block, rules), *_broken_masks(block, rules)]
    for what, rows in broken:
        if rows.any():
            first = int(np.argmax(rows))
            yield f"{np.count_nonzero(rows)} instance(s), the first is row {first}: {what}"


def count_shares(block: Block, rules: InstanceRules) -> Shares:
    """What of a block chance decides; a block without violations."""
    shown = block.input_ids[block.masked_indices]
    is_mask = shown == rules.masking.mask_id
    is_original = (shown == block.masked_lm_ids) & ~is_mask
    num_random, *kinds = map(int, map(np.sum, (block.is_random_next, is_mask, is_original)))
    return Shares(block.num_instances, num_random, block.num_masked, *kinds)


def find_unlikely_shares(shares: Shares, vocab_size: int) -> Iterator[str]:
    """Shares that the rules give once in 10^9 datasets or less.

    Masked positions are drawn independently (docs/parity.md 2.5), so their three kinds have a
    chi-square. Of pairs the rules fix a lower bound alone: a chunk of two sentences or more is
    random next with one half, one of a single sentence always is (1.5).
    """
    if shares.masked and (chi_square := _chi_square(shares, vocab_size)) > MAX_CHI_SQUARE:
        yield (
            f"masked positions show {_describe_masks(shares)}, expected 80, 10 and 10 %:"
            f" chi-square {chi_square:.1f}, at most {MAX_CHI_SQUARE:.1f} is chance"
        )
    missing = shares.instances / 2 - shares.random_next
    deviations = missing / math.sqrt(max(1, shares.instances) / 4)
    if deviations > MAX_DEVIATIONS:
        yield (
            f"{shares.random_next} of {shares.instances} pairs are random, expected half or more:"
            f" {deviations:.1f} standard deviations below it,"
            f" at most {MAX_DEVIATIONS:.0f} are chance"
        )


def describe_shares(shares: Shares, vocab_size: int) -> str:
    """One line for people."""
    random_next = 100 * shares.random_next / max(1, shares.instances)
    return (
        f"masked positions show {_describe_masks(shares)}"
        f" (chi-square {_chi_square(shares, vocab_size):.2f} of 2 degrees of freedom,"
        f" at most {MAX_CHI_SQUARE:.1f}); {random_next:.2f} % of pairs are random"
    )


def _describe_masks(shares: Shares) -> str:
    """[MASK], the token itself and other tokens, in percent."""
    mask, original, other = (100 * each / max(1, shares.masked) for each in _kinds(shares))
    return f"[MASK] {mask:.2f} %, the token {original:.2f} %, another {other:.2f} %"


def _kinds(shares: Shares) -> tuple[int, int, int]:
    others = shares.masked - shares.shown_as_mask - shares.shown_as_original
    return shares.shown_as_mask, shares.shown_as_original, others


def _chi_square(shares: Shares, vocab_size: int) -> float:
    """Of the three kinds; a random id may be [MASK] or the token itself, never both."""
    by_chance = 0.1 / vocab_size
    expected = (0.8 + by_chance, 0.1 + by_chance, 0.1 - 2 * by_chance)
    return sum(
        (found - share * shares.masked) ** 2 / (share * shares.masked)
        for found, share in zip(_kinds(shares), expected, strict=True)
        if shares.masked
    )


def _broken_shape(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    """Lengths, segments and where positions lie: [N] rows that break each rule."""
    lengths = np.diff(block.offsets).astype(np.int64)
    middle = block.segment_a_length.astype(np.int64)
    is_empty = (middle < NUM_SPECIAL_TOKENS) | (lengths - middle < NUM_SPECIAL_TOKENS - 1)
    yield f"longer than {rules.seq_len} tokens", lengths > rules.seq_len
    yield "a segment without a token", is_empty
    positions = block.masked_lm_positions.astype(np.int64)
    owner = _owners(block.masked_offsets)
    yield "a masked position past its end", _rows(owner, positions >= lengths[owner], block)
    falls = np.zeros(len(positions), np.bool_)
    falls[1:] = (positions[1:] <= positions[:-1]) & (owner[1:] == owner[:-1])
    yield "masked positions that do not ascend", _rows(owner, falls, block)
    is_end = (positions == middle[owner] - 1) | (positions == lengths[owner] - 1)
    yield "a masked position on [CLS] or [SEP]", _rows(owner, (positions == 0) | is_end, block)
    counts, expected = np.diff(block.masked_offsets), count_predictions(lengths, rules.masking)
    if rules.masking.is_continuation is None:
        what, is_wrong = "another number of", counts != expected
    else:
        what, is_wrong = "more", counts > expected
    yield f"{what} masked positions than its length gives (docs/parity.md 2.3)", is_wrong


def _broken_tokens(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    starts, ends = block.offsets[:-1].astype(np.int64), block.offsets[1:].astype(np.int64)
    ids, middle = block.input_ids, starts + block.segment_a_length
    owner, vocab_size = _owners(block.offsets), rules.masking.vocab_size
    yield f"a token id of {vocab_size} or more", _rows(owner, ids >= vocab_size, block)
    yield "no [CLS] at its start", ids[starts] != rules.cls_id
    yield "no [SEP] at the end of A, where segment_a_length has it", ids[middle - 1] != rules.sep_id
    yield "no [SEP] at its end", ids[ends - 1] != rules.sep_id
    foreign = np.isin(ids, rules.never_in_text)
    foreign[starts] = foreign[middle - 1] = foreign[ends - 1] = False
    foreign[block.masked_indices] = False
    yield "[PAD], [CLS], [SEP] or [MASK] among its words", _rows(owner, foreign, block)
    differs = block.document_a != block.document_b
    yield "is_random_next and its documents do not agree", differs != block.is_random_next


def _broken_masks(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    owner, vocab_size = _owners(block.masked_offsets), rules.masking.vocab_size
    labels = block.masked_lm_ids
    yield f"a masked_lm_id of {vocab_size} or more", _rows(owner, labels >= vocab_size, block)
    is_special = np.isin(labels, rules.never_in_text)
    yield "a masked_lm_id of [PAD], [CLS], [SEP] or [MASK]", _rows(owner, is_special, block)
    if rules.masking.is_continuation is not None:
        yield "a word masked in part", _partly_masked(block, rules.masking.is_continuation)


def _partly_masked(block: Block, is_continuation: Bools) -> Bools:
    """[N] instances with a continuing piece masked and the piece before not, or the reverse."""
    ids, masked = block.input_ids.copy(), block.masked_indices
    ids[masked] = block.masked_lm_ids
    is_masked = np.zeros(len(ids), np.bool_)
    is_masked[masked] = True
    continues = is_continuation[np.minimum(ids, len(is_continuation) - 1)]
    starts, ends = block.offsets[:-1].astype(np.int64), block.offsets[1:].astype(np.int64)
    # A segment that begins inside a word begins a word (docs/parity.md 5).
    for first in (starts, starts + 1, starts + block.segment_a_length, ends - 1):
        continues[first] = False
    parted = np.zeros(len(ids), np.bool_)
    parted[1:] = continues[1:] & (is_masked[1:] != is_masked[:-1])
    return _rows(_owners(block.offsets), parted, block)


def _owners(offsets: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """The instance of each token or position."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _rows(owner: npt.NDArray[np.int64], is_broken: Bools, block: Block) -> Bools:
    """[N] instances that own a broken token or position."""
    rows = np.zeros(block.num_instances, np.bool_)
    rows[owner[is_broken]] = True
    return rows
