"""What must hold of every instance of a dataset (docs/parity.md): `verify --deep` decodes all of them and asks this.

Rules are looked at for a whole block at once. Shares that chance decides are counted, summed over a
group (split and length) and compared with what the rules of masking and pairing give.

Shapes: N instances, T tokens, M masked positions.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from pipeline.instances.masking import SETTINGS, MaskingRule, count_predictions, masking_rule
from pipeline.instances.pairs import NUM_SPECIAL_TOKENS
from pipeline.shards.block import Block
from pipeline.shards.records import Manifest

# A sound group fails a test of shares once in 10^9: chi-square of 2 degrees of freedom, one side of
# a normal.
MAX_CHI_SQUARE = 2 * math.log(1e9)
MAX_DEVIATIONS = 6.0

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class InstanceRules:
    """What instances of one length must obey.

    Attributes:
        seq_len: Most tokens of an instance.
        cls_id, sep_id: Ids of [CLS] and [SEP], which stand around the segments.
        never_in_text: [S] ids that no text has: [PAD], [CLS], [SEP] and [MASK]. [UNK] stands for
            words of the text.
        masking: Counts, ids and, for whole words, which pieces continue a word.
    """

    seq_len: int
    cls_id: int
    sep_id: int
    never_in_text: npt.NDArray[np.int64]
    masking: MaskingRule


@dataclass(frozen=True)
class Shares:
    """Counts of what chance decides; sums over blocks.

    Attributes:
        instances: All.
        random_next: Those whose B is from another document.
        masked: Masked positions.
        shown_as_mask: Those that show [MASK].
        shown_as_original: Those that show the token itself.
    """

    instances: int = 0
    random_next: int = 0
    masked: int = 0
    shown_as_mask: int = 0
    shown_as_original: int = 0

    def __add__(self, other: "Shares") -> "Shares":
        return Shares(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(Shares))
        )


def rules_of(manifest: Manifest, seq_len: int, is_continuation: Bools) -> InstanceRules:
    """The rules of a dataset's instances of one length, out of its manifest.

    Args:
        manifest: The dataset's manifest.
        seq_len: Most tokens of an instance.
        is_continuation: [vocab_size], true for pieces that begin with "##".

    Raises:
        ValueError: The manifest's settings do not say how it was masked.
    """
    settings = manifest.settings
    if missing := [name for name in SETTINGS if name not in settings]:
        raise ValueError(
            f"the manifest's settings say nothing of {', '.join(missing)}; instances cannot be checked"
        )
    special = manifest.special_ids
    masking = masking_rule(settings, seq_len, special["mask"], is_continuation)
    never = np.array([special[name] for name in ("pad", "cls", "sep", "mask")], np.int64)
    return InstanceRules(seq_len, special["cls"], special["sep"], never, masking)


def find_violations(block: Block, rules: InstanceRules) -> Iterator[str]:
    """Says of each broken rule how many instances break it and which is the first; a block of a known schema.

    Rules of the tokens are asked only where lengths and positions are sound, or they could not be
    told apart.
    """
    broken = list(_broken_shape(block, rules))
    if not any(rows.any() for _, rows in broken):
        broken += [*_broken_tokens(block, rules), *_broken_masks(block, rules)]
    for what, rows in broken:
        if rows.any():
            yield f"{np.count_nonzero(rows)} instance(s), the first is row {int(np.argmax(rows))}: {what}"


def count_shares(block: Block, rules: InstanceRules) -> Shares:
    """What of a block chance decides; a block without violations."""
    shown = block.input_ids[block.masked_indices]
    is_mask = shown == rules.masking.mask_id
    return Shares(
        instances=block.num_instances,
        random_next=int(np.count_nonzero(block.is_random_next)),
        masked=block.num_masked,
        shown_as_mask=int(np.count_nonzero(is_mask)),
        shown_as_original=int(np.count_nonzero((shown == block.masked_lm_ids) & ~is_mask)),
    )


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
    deviations = (shares.instances / 2 - shares.random_next) / math.sqrt(
        max(1, shares.instances) / 4
    )
    if deviations > MAX_DEVIATIONS:
        yield (
            f"{shares.random_next} of {shares.instances} pairs are random, expected half or more:"
            f" {deviations:.1f} standard deviations below it, at most {MAX_DEVIATIONS:.0f} are chance"
        )


def describe_shares(shares: Shares, vocab_size: int) -> str:
    """One line for people."""
    random_next = 100 * shares.random_next / max(1, shares.instances)
    return (
        f"masked positions show {_describe_masks(shares)} (chi-square {_chi_square(shares, vocab_size):.2f}"
        f" of 2 degrees of freedom, at most {MAX_CHI_SQUARE:.1f}); {random_next:.2f} % of pairs are random"
    )


def _describe_masks(shares: Shares) -> str:
    """[MASK], the token itself and other tokens, in percent."""
    mask, original, other = (100 * each / max(1, shares.masked) for each in _kinds(shares))
    return f"[MASK] {mask:.2f} %, the token {original:.2f} %, another {other:.2f} %"


def _kinds(shares: Shares) -> tuple[int, int, int]:
    others = shares.masked - shares.shown_as_mask - shares.shown_as_original
    return shares.shown_as_mask, shares.shown_as_original, others


def _chi_square(shares: Shares, vocab_size: int) -> float:
    """The statistic of the three kinds; a random id may be [MASK] or the token itself, never both."""
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
    yield f"longer than {rules.seq_len} tokens", lengths > rules.seq_len
    yield (
        "a segment without a token",
        (middle < NUM_SPECIAL_TOKENS) | (lengths - middle < NUM_SPECIAL_TOKENS - 1),
    )
    counts = np.diff(block.masked_offsets)
    positions = block.masked_lm_positions.astype(np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    yield "a masked position past its end", _rows(owner, positions >= lengths[owner], len(counts))
    falls = np.zeros(len(positions), np.bool_)
    falls[1:] = (positions[1:] <= positions[:-1]) & (owner[1:] == owner[:-1])
    yield "masked positions that do not ascend", _rows(owner, falls, len(counts))
    is_special = (
        (positions == 0) | (positions == middle[owner] - 1) | (positions == lengths[owner] - 1)
    )
    yield "a masked position on [CLS] or [SEP]", _rows(owner, is_special, len(counts))
    expected = count_predictions(lengths, rules.masking)
    if rules.masking.is_continuation is None:
        yield (
            "another number of masked positions than its length gives (docs/parity.md 2.3)",
            counts != expected,
        )
    else:
        yield "more masked positions than its length gives (docs/parity.md 2.3)", counts > expected


def _broken_tokens(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    starts, ends = block.offsets[:-1].astype(np.int64), block.offsets[1:].astype(np.int64)
    ids, middle = block.input_ids, starts + block.segment_a_length
    vocab_size = rules.masking.vocab_size
    owner = np.repeat(np.arange(block.num_instances), np.diff(block.offsets))
    yield (
        f"a token id of {vocab_size} or more",
        _rows(owner, ids >= vocab_size, block.num_instances),
    )
    yield "no [CLS] at its start", ids[starts] != rules.cls_id
    yield "no [SEP] at the end of A, where segment_a_length has it", ids[middle - 1] != rules.sep_id
    yield "no [SEP] at its end", ids[ends - 1] != rules.sep_id
    is_text = np.ones(len(ids), np.bool_)
    is_text[starts] = is_text[middle - 1] = is_text[ends - 1] = False
    is_text[block.masked_indices] = False
    foreign = is_text & np.isin(ids, rules.never_in_text)
    yield (
        "[PAD], [CLS], [SEP] or [MASK] among its words",
        _rows(owner, foreign, block.num_instances),
    )
    differs = block.document_a != block.document_b
    yield "is_random_next and its documents do not agree", differs != block.is_random_next


def _broken_masks(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    counts = np.diff(block.masked_offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    labels, vocab_size = block.masked_lm_ids, rules.masking.vocab_size
    yield f"a masked_lm_id of {vocab_size} or more", _rows(owner, labels >= vocab_size, len(counts))
    is_special = np.isin(labels, rules.never_in_text)
    yield "a masked_lm_id of [PAD], [CLS], [SEP] or [MASK]", _rows(owner, is_special, len(counts))
    if rules.masking.is_continuation is not None:
        yield "a word masked in part", _partly_masked(block, rules.masking.is_continuation)


def _partly_masked(block: Block, is_continuation: Bools) -> Bools:
    """[N] instances in which a piece that continues a word is masked and the piece before is not, or the reverse."""
    ids, masked = block.input_ids.copy(), block.masked_indices
    ids[masked] = block.masked_lm_ids
    is_masked = np.zeros(len(ids), np.bool_)
    is_masked[masked] = True
    continues = is_continuation[np.minimum(ids, len(is_continuation) - 1)]
    starts = block.offsets[:-1].astype(np.int64)
    for first in (
        starts,
        starts + 1,
        starts + block.segment_a_length,
        block.offsets[1:].astype(np.int64) - 1,
    ):
        continues[first] = (
            False  # a segment that begins inside a word begins a word (docs/parity.md 5)
        )
    parted = np.zeros(len(ids), np.bool_)
    parted[1:] = continues[1:] & (is_masked[1:] != is_masked[:-1])
    owner = np.repeat(np.arange(block.num_instances), np.diff(block.offsets))
    return _rows(owner, parted, block.num_instances)


def _rows(owner: npt.NDArray[np.int64], is_broken: Bools, num_instances: int) -> Bools:
    """[N] instances that own a broken token or position."""
    rows = np.zeros(num_instances, np.bool_)
    rows[owner[is_broken]] = True
    return rows
