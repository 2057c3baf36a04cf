"""Checks instances against the rules of docs/parity.md.

`python -m pipeline verify --deep true` makes these checks.

Shapes: N instances, T tokens, M masked positions.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.instances.masking import SETTINGS, MaskingRule, count_predictions, masking_rule
from pipeline.shards.block import Block
from pipeline.shards.instance_kind import has_pairs
from pipeline.shards.records import Manifest

# Both limits refuse a sound dataset once in 10^9.
MAX_CHI_SQUARE = 2 * math.log(1e9)  # of 2 degrees of freedom
MAX_DEVIATIONS = 6.0  # of a normal distribution, to one side

Bools = npt.NDArray[np.bool_]


class InstanceRules(NamedTuple):
    """The rules for instances of one length.

    Attributes:
        seq_len: The most tokens of an instance.
        cls_id: The id of [CLS].
        sep_id: The id of [SEP].
        never_in_text: Ids that no word of a text may have: those of [PAD], [CLS], [SEP] and [MASK].
            Words may be [UNK].
        masking: The rule by which instances are masked.
        has_pairs: Whether instances are pairs, [CLS] A [SEP] B [SEP], or all [CLS] A [SEP].
    """

    seq_len: int
    cls_id: int
    sep_id: int
    never_in_text: npt.NDArray[np.int64]
    masking: MaskingRule
    has_pairs: bool = True


class Shares(NamedTuple):
    """Counts of everything that chance decides, summed over blocks.

    Attributes:
        instances: Number of instances.
        random_next: Number of instances with a random B.
        masked: Number of masked positions.
        shown_as_mask: Number of masked positions that show [MASK].
        shown_as_original: Number of masked positions that show the original token.
    """

    instances: int = 0
    random_next: int = 0
    masked: int = 0
    shown_as_mask: int = 0
    shown_as_original: int = 0


def rules_of(manifest: Manifest, seq_len: int, is_continuation: Bools) -> InstanceRules:
    """Returns the rules of a dataset's instances of one length.

    Args:
        manifest: The manifest of the dataset.
        seq_len: The most tokens of an instance.
        is_continuation: [vocab_size] true for pieces that begin with "##".

    Raises:
        ValueError: The manifest's settings do not say how the dataset was masked.
    """
    settings = manifest.settings
    missing = [name for name in SETTINGS if name not in settings]
    if missing:
        raise ValueError(
            f"the manifest's settings say nothing of {', '.join(missing)};"
            " instances cannot be checked"
        )
    special = manifest.special_ids
    masking = masking_rule(settings, seq_len, special["mask"], is_continuation)
    never = np.array([special[name] for name in ("pad", "cls", "sep", "mask")], np.int64)
    ids = special["cls"], special["sep"]
    return InstanceRules(seq_len, *ids, never, masking, has_pairs(settings))


def find_violations(block: Block, rules: InstanceRules) -> Iterator[str]:
    """Yields a message for each broken rule: how many instances break it, and the first of them.

    Rules about tokens are checked only if all lengths and positions are sound.

    Args:
        block: A decoded block.
        rules: The rules for its instances.
    """
    broken = list(_broken_shape(block, rules))
    if not any(rows.any() for _, rows in broken):
        broken += [*_broken_tokens(block, rules), *_broken_masks(block, rules)]
    for what, rows in broken:
        if rows.any():
            first = int(np.argmax(rows))
            yield f"{np.count_nonzero(rows)} instance(s), the first is row {first}: {what}"


def count_shares(block: Block, rules: InstanceRules) -> Shares:
    """Counts everything that chance decides in a block, which must have no violations."""
    shown = block.input_ids[block.masked_indices]
    is_mask = shown == rules.masking.mask_id
    is_original = (shown == block.masked_lm_ids) & ~is_mask
    return Shares(
        instances=block.num_instances,
        random_next=int(np.sum(block.is_random_next)),
        masked=block.num_masked,
        shown_as_mask=int(np.sum(is_mask)),
        shown_as_original=int(np.sum(is_original)),
    )


def find_unlikely_shares(
    shares: Shares, vocab_size: int, *, has_all_pairs: bool = True
) -> Iterator[str]:
    """Yields a message for each share that is too extreme to be chance.

    A correct dataset has such a share with a probability of at most 10^-9.

    What a masked position shows is drawn independently of all others (docs/parity.md 2.5), so a
    chi-square test applies to the numbers of positions that show [MASK], the original token and
    another token. The share of random pairs has only a lower bound: a chunk of two or more
    sentences gets a random segment B with probability 1/2, and a chunk of one sentence always gets
    one (docs/parity.md 1.5). A redaction takes more of the random pairs than of the others, because
    these are of two documents. Instances of one segment are no pairs.

    Args:
        shares: The counts of a whole dataset.
        vocab_size: The size of its vocabulary.
        has_all_pairs: Whether the dataset has all pairs that were drawn. If it is redacted, or has
            no pairs, the share of random pairs has no lower bound.
    """
    chi_square = _chi_square(shares, vocab_size)
    if shares.masked and chi_square > MAX_CHI_SQUARE:
        yield (
            f"masked positions show {_describe_masks(shares)}, expected 80, 10 and 10 %:"
            f" chi-square {chi_square:.1f}, at most {MAX_CHI_SQUARE:.1f} is chance"
        )
    missing = shares.instances / 2 - shares.random_next
    deviations = missing / math.sqrt(max(1, shares.instances) / 4)
    if has_all_pairs and deviations > MAX_DEVIATIONS:
        yield (
            f"{shares.random_next} of {shares.instances} pairs are random, expected half or more:"
            f" {deviations:.1f} standard deviations below it,"
            f" at most {MAX_DEVIATIONS:.0f} are chance"
        )


def describe_shares(shares: Shares, rules: InstanceRules) -> str:
    """Describes counts for people: the three kinds of masked positions, and random pairs."""
    chi_square = _chi_square(shares, rules.masking.vocab_size)
    described = (
        f"masked positions show {_describe_masks(shares)} (chi-square {chi_square:.2f} of 2 degrees"
        f" of freedom, at most {MAX_CHI_SQUARE:.1f})"
    )
    if not rules.has_pairs:
        return described
    random_next = 100 * shares.random_next / max(1, shares.instances)
    return f"{described}; {random_next:.2f} % of pairs are random"


def _describe_masks(shares: Shares) -> str:
    """Says how many masked positions show [MASK], the original or another token, in percent."""
    mask, original, other = (100 * count / max(1, shares.masked) for count in _kinds(shares))
    return f"[MASK] {mask:.2f} %, the token {original:.2f} %, another {other:.2f} %"


def _kinds(shares: Shares) -> tuple[int, int, int]:
    """Returns how many masked positions show [MASK], the original token, and another token."""
    others = shares.masked - shares.shown_as_mask - shares.shown_as_original
    return shares.shown_as_mask, shares.shown_as_original, others


def _chi_square(shares: Shares, vocab_size: int) -> float:
    """Returns the chi-square of the numbers of `_kinds`; 0 if there are no masked positions.

    80 % of the positions show [MASK], 10 % the original token, and 10 % any id of the vocabulary.
    That id is [MASK] or the original token with a chance of 1 / vocab_size each, so a little more
    than 80 % and 10 % are expected.
    """
    by_chance = 0.1 / vocab_size
    expected = (0.8 + by_chance, 0.1 + by_chance, 0.1 - 2 * by_chance)
    return sum(
        (found - share * shares.masked) ** 2 / (share * shares.masked)
        for found, share in zip(_kinds(shares), expected, strict=True)
        if shares.masked
    )


def _broken_shape(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    """Checks lengths and segments, and the number, order and range of masked positions.

    Yields:
        The text of a rule, and [N] whether each instance breaks the rule.
    """
    lengths = np.diff(block.offsets).astype(np.int64)
    middle = block.segment_a_length.astype(np.int64)
    rest = lengths - middle
    yield f"longer than {rules.seq_len} tokens", lengths > rules.seq_len
    yield "a segment without a token", (middle < 3) | (rest == 1)
    positions = block.masked_lm_positions.astype(np.int64)
    owner = _owners(block.masked_offsets)
    yield "a masked position past its end", _rows(owner, positions >= lengths[owner], block)
    falls = np.zeros(len(positions), np.bool_)
    falls[1:] = (positions[1:] <= positions[:-1]) & (owner[1:] == owner[:-1])
    yield "masked positions that do not ascend", _rows(owner, falls, block)
    is_end = (positions == middle[owner] - 1) | (positions == lengths[owner] - 1)
    yield "a masked position on [CLS] or [SEP]", _rows(owner, (positions == 0) | is_end, block)
    counts = np.diff(block.masked_offsets)
    expected = count_predictions(lengths, middle, rules.masking)
    if rules.masking.is_continuation is None:
        what = "another number of"
        is_wrong = counts != expected
    else:
        what = "more"
        is_wrong = counts > expected
    yield f"{what} masked positions than its length gives (docs/parity.md 2.3)", is_wrong


def _broken_tokens(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    """Checks the range of ids, the places of special tokens, and `is_random_next`.

    `is_random_next` must be true if and only if A and B are from different documents.

    Yields:
        The text of a rule, and [N] whether each instance breaks the rule.
    """
    starts = block.offsets[:-1].astype(np.int64)
    ends = block.offsets[1:].astype(np.int64)
    ids = block.input_ids
    middle = starts + block.segment_a_length
    owner = _owners(block.offsets)
    vocab_size = rules.masking.vocab_size
    yield f"a token id of {vocab_size} or more", _rows(owner, ids >= vocab_size, block)
    yield "no [CLS] at its start", ids[starts] != rules.cls_id
    yield "no [SEP] at the end of A, where segment_a_length has it", ids[middle - 1] != rules.sep_id
    yield "no [SEP] at its end", ids[ends - 1] != rules.sep_id
    foreign = np.isin(ids, rules.never_in_text)
    for allowed in (starts, middle - 1, ends - 1, block.masked_indices):
        foreign[allowed] = False
    yield "[PAD], [CLS], [SEP] or [MASK] among its words", _rows(owner, foreign, block)
    differs = block.document_a != block.document_b
    yield "is_random_next and its documents do not agree", differs != block.is_random_next


def _broken_masks(block: Block, rules: InstanceRules) -> Iterator[tuple[str, Bools]]:
    """Checks the original tokens of masked positions.

    If the dataset masks whole words, also checks that no word is masked in part.

    Yields:
        The text of a rule, and [N] whether each instance breaks the rule.
    """
    owner = _owners(block.masked_offsets)
    vocab_size = rules.masking.vocab_size
    labels = block.masked_lm_ids
    yield f"a masked_lm_id of {vocab_size} or more", _rows(owner, labels >= vocab_size, block)
    is_special = np.isin(labels, rules.never_in_text)
    yield "a masked_lm_id of [PAD], [CLS], [SEP] or [MASK]", _rows(owner, is_special, block)
    if rules.masking.is_continuation is not None:
        yield "a word masked in part", _partly_masked(block, rules.masking.is_continuation)


def _partly_masked(block: Block, is_continuation: Bools) -> Bools:
    """Returns whether each instance has a word with masked and unmasked pieces: [N]."""
    ids = block.input_ids.copy()
    masked = block.masked_indices
    ids[masked] = block.masked_lm_ids
    is_masked = np.zeros(len(ids), np.bool_)
    is_masked[masked] = True
    continues = is_continuation[np.minimum(ids, len(is_continuation) - 1)]
    starts = block.offsets[:-1].astype(np.int64)
    ends = block.offsets[1:].astype(np.int64)
    # The first piece of a segment begins a word, even if it begins with "##" (docs/parity.md 5).
    middle = starts + block.segment_a_length
    for first in (starts, starts + 1, middle[middle < ends], ends - 1):
        continues[first] = False
    is_parted = np.zeros(len(ids), np.bool_)
    is_parted[1:] = continues[1:] & (is_masked[1:] != is_masked[:-1])
    return _rows(_owners(block.offsets), is_parted, block)


def _owners(offsets: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Returns the index of the instance to which each token, or each masked position, belongs.

    Args:
        offsets: [N + 1] the `offsets` of a block for its tokens, or its `masked_offsets` for its
            masked positions.

    Returns:
        [T] or [M] int64.
    """
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _rows(owner: npt.NDArray[np.int64], is_broken: Bools, block: Block) -> Bools:
    """Returns whether each instance has a token, or a masked position, that breaks a rule: [N].

    Args:
        owner: The index of the instance of each token or masked position, from `_owners`.
        is_broken: Whether each token or masked position breaks the rule.
        block: The block.
    """
    rows = np.zeros(block.num_instances, np.bool_)
    rows[owner[is_broken]] = True
    return rows
