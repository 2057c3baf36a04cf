"""Masks: exact counts, labels that restore the original, the reference's distribution (2)."""

from itertools import chain
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.instances import masking
from pipeline.instances.masking import (
    GroupDraws,
    InstanceDraws,
    MaskedInstances,
    MaskingRule,
    count_predictions,
    mask_instances,
)
from tests.compiled_paths import taken_path
from tests.pipeline import reference

CLS, SEP, MASK, SIZE = 101, 102, 103, 3000
RULE = MaskingRule(mask_id=MASK, vocab_size=SIZE, max_predictions=20)
CONTINUATIONS = np.arange(SIZE) % 3 == 0  # a third of the ids continue a word
WHOLE = reference.Settings(whole_word_masking=True, glue_across_segments=False)
VOCABULARY = reference.Vocabulary(SIZE, CLS, SEP, MASK, frozenset(range(0, SIZE, 3)))


def make_run(shapes: list[tuple[int, int]], seed: int = 1) -> tuple[np.ndarray, ...]:
    """Packed instances of random ordinary tokens from the lengths of A and B."""
    rng, rows = Random(seed), []
    for lengths in shapes:
        a, b = (rng.choices(range(200, SIZE), k=length) for length in lengths)
        rows.append([CLS, *a, SEP, *b, SEP])
    a_length = np.array([a + 2 for a, _ in shapes], np.uint16)
    return np.array(list(chain(*rows)), np.uint16), np.cumsum([0, *map(len, rows)]), a_length


def flat_positions(run: MaskedInstances, offsets: np.ndarray) -> np.ndarray:
    return run.masked_lm_positions + np.repeat(offsets[:-1], np.diff(run.masked_offsets))


shapes = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), max_size=12)


@given(
    shapes=shapes.map(lambda few: few * 90),  # more than a grid
    seed=st.integers(0, 2**64 - 1),
    probability=st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    is_run=st.booleans(),
)
def test_both_paths_choose_the_same(shapes, seed, probability, is_run):
    original, offsets, a_length = make_run(shapes)
    rule = MaskingRule(MASK, SIZE, 200, probability)
    found = []
    for path in ("python", "compiled"):
        seeds = np.arange(len(shapes), dtype=np.uint64) * np.uint64(2**40) + np.uint64(seed >> 8)
        draws = GroupDraws(Random(seed)) if is_run else InstanceDraws(seeds, 9)
        with taken_path(path, "pipeline.instances._instances", masking, "loops"):
            run = mask_instances(original.copy(), offsets, a_length, rule, draws)
        found.append({name: column.tolist() for name, column in vars(run).items()})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": [0, 8]},
        {"offsets": [0, 3, 20]},
        {"offsets": [-8, 8, 20]},
        {"a_length": [9, 6]},
        {"a_length": [1, 6]},
        {"counts": [0, 5]},
        {"counts": [6, 2]},
        {"offsets": [-(2**63), 8, 20]},
        {"offsets": [0, 2**63 - 1, -(2**63)]},
        {"counts": [2, 4]},
        {"position_bits": [3, 3]},
        {"position_bits": [4, 17]},
        {"seeds": [1]},
        {"chosen": [0] * 5},
    ],
    ids=str,
)
def test_instances_that_do_not_fit_are_refused(changes):
    if not masking.loops:
        pytest.skip("the compiled loops are not there")
    arguments = {
        "offsets": [0, 8, 20], "a_length": [4, 6], "counts": [2, 3], "seeds": [1, 2],
        "firsts": [0, 7], "position_bits": [4, 4], "chosen": [0] * 6,
    }  # fmt: skip
    kinds = np.int64, np.uint16, np.int64, np.uint64, np.int64, np.uint8, np.int64

    def choose(given):
        masking.loops.choose_tokens(*map(np.array, given.values(), kinds))

    choose(arguments)
    with pytest.raises(ValueError, match="do not fit"):
        choose(arguments | changes)


@given(
    shapes=shapes,
    seed=st.integers(0, 2**64),
    probability=st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    whole_words=st.booleans(),
)
def test_properties(shapes, seed, probability, whole_words):
    original, offsets, a_length = make_run(shapes, seed)
    rule = MaskingRule(MASK, SIZE, 20, probability, CONTINUATIONS if whole_words else None)
    run = mask_instances(original.copy(), offsets, a_length, rule, GroupDraws(Random(seed)))
    flat = flat_positions(run, offsets)
    counts = np.diff(run.masked_offsets)
    lengths = np.diff(offsets)
    most = [reference.count_predictions(n, probability, 20) for n in lengths.tolist()]
    expected = np.minimum(most, lengths - 3).tolist()
    assert (counts <= expected).all() if whole_words else counts.tolist() == expected
    assert (np.diff(flat) > 0).all()
    assert not np.isin(original[flat], [CLS, SEP]).any()
    assert run.masked_offsets[-1] == len(flat) == len(run.masked_lm_ids)
    dtypes = {run.masked_lm_positions.dtype, run.masked_lm_ids.dtype, run.input_ids.dtype}
    assert dtypes == {np.dtype(np.uint16)}
    restored = run.input_ids.copy()
    restored[flat] = run.masked_lm_ids
    assert (restored == original).all()


def test_counts_round_half_to_even():
    lengths = np.array([5, 10, 30, 50, 70, 90, 110, 128, 130])
    rule = MaskingRule(MASK, SIZE, max_predictions=76)
    counts = count_predictions(lengths, lengths - 2, rule)
    assert counts.tolist() == [1, 2, 4, 8, 10, 14, 16, 19, 20]


def test_short_instances_keep_room_for_special_tokens():
    lengths = np.array([4, 5, 3, 4, 5])  # of pairs, then of single segments
    rule = MaskingRule(MASK, SIZE, max_predictions=76, masked_lm_prob=0.99)
    counts = count_predictions(lengths, np.array([2, 3, 3, 4, 5]), rule)
    assert counts.tolist() == [1, 2, 1, 2, 3]


@pytest.mark.parametrize(
    ("a", "b", "count", "num_rows"), [(60, 65, 19, 20_000), (250, 259, 76, 4_000)]
)
def test_positions_are_uniform_and_replacements_80_10_10(a, b, count, num_rows):
    """Over 300,000 masked tokens; tolerances are five standard deviations of a count."""
    original, offsets, a_length = make_run([(a, b)] * num_rows)
    rule = MaskingRule(MASK, SIZE, max_predictions=76)
    run = mask_instances(original.copy(), offsets, a_length, rule, GroupDraws(Random(12345)))
    num_masked = len(run.masked_lm_ids)
    assert num_masked == count * num_rows >= 300_000

    per_position = np.bincount(run.masked_lm_positions, minlength=a + b + 3)
    assert per_position[[0, a + 1, a + b + 2]].tolist() == [0, 0, 0]
    share = count / (a + b)
    candidates = np.delete(per_position, [0, a + 1, a + b + 2])
    assert np.abs(candidates - num_rows * share).max() < 5 * np.sqrt(num_rows * share * (1 - share))

    now = run.input_ids[flat_positions(run, offsets)]
    is_mask, is_kept = now == MASK, now == run.masked_lm_ids
    tolerance = 5 * np.sqrt(0.25 / num_masked)
    assert abs(is_mask.mean() - 0.8) < tolerance
    assert abs(is_kept.mean() - 0.1) < tolerance
    others = now[~is_mask & ~is_kept]
    per_id = np.bincount(others, minlength=SIZE)
    assert per_id[MASK] == 0  # counted as [MASK] above
    assert per_id[[CLS, SEP, 0, SIZE - 1]].min() > 0  # any id of the vocabulary, special ones too
    mean = len(others) / SIZE
    chi_square = ((per_id - mean) ** 2 / mean).sum()
    assert abs(chi_square / SIZE - 1) < 0.15


def test_ragged_rows_mask_every_position_equally():
    original, offsets, a_length = make_run([(1, 4), (3, 9), (20, 41)] * 4000)
    run = mask_instances(original.copy(), offsets, a_length, RULE, GroupDraws(Random(3)))
    row = np.repeat(np.arange(12_000), np.diff(run.masked_offsets))
    for kind, (a, b, count) in enumerate([(1, 4, 1), (3, 9, 2), (20, 41, 10)]):
        per_position = np.bincount(run.masked_lm_positions[row % 3 == kind], minlength=a + b + 3)
        candidates = np.delete(per_position, [0, a + 1, a + b + 2])
        share = count / (a + b)
        assert candidates.sum() == 4000 * count
        assert np.abs(candidates - 4000 * share).max() < 5 * np.sqrt(4000 * share)


def test_whole_words_are_masked_whole_and_stop_at_segments():
    original, offsets, a_length = make_run([(30, 40)] * 300)
    original[a_length[0] :: offsets[1]] = 300  # every B begins with a continuation
    rule = MaskingRule(MASK, SIZE, 20, is_continuation=CONTINUATIONS)
    run = mask_instances(original.copy(), offsets, a_length, rule, GroupDraws(Random(9)))
    chosen = set(flat_positions(run, offsets).tolist())
    num_split = 0
    for row, start in enumerate(offsets[:-1].tolist()):
        tokens = original[start : offsets[row + 1]].tolist()
        segment_ids = [0] * int(a_length[row]) + [1] * (len(tokens) - int(a_length[row]))
        for word in reference.list_words(tokens, segment_ids, VOCABULARY, WHOLE):
            num_split += len({start + position in chosen for position in word}) > 1
    assert num_split == 0
    mean = np.diff(run.masked_offsets).mean()
    assert mean > 10.5, "of 11: a word that does not fit is passed over"


def test_whole_word_counts_are_those_of_the_oracle():
    """The same share of tokens, single words and positions as the reference's draws give."""
    original, offsets, a_length = make_run([(40, 50)] * 600)
    rule = MaskingRule(MASK, SIZE, 20, is_continuation=CONTINUATIONS)
    run = mask_instances(original.copy(), offsets, a_length, rule, GroupDraws(Random(9)))
    rng, rows = Random(10), [row.tolist() for row in np.split(original, offsets[1:-1])]
    pairs = [reference.Pair(row[1:41], row[42:-1], False) for row in rows]
    instances = [reference.mask_pair(pair, VOCABULARY, WHOLE, rng) for pair in pairs]
    theirs = np.array([len(instance.positions) for instance in instances])
    continuations = np.mean([CONTINUATIONS[instance.label_ids].mean() for instance in instances])
    assert abs(np.diff(run.masked_offsets).mean() - theirs.mean()) < 0.05
    assert abs(CONTINUATIONS[run.masked_lm_ids].mean() - continuations) < 0.02


def test_the_draws_do_not_depend_on_the_dtype_of_tokens():
    original, offsets, a_length = make_run([(9, 70)] * 1100)
    for continues in (None, CONTINUATIONS):
        rule = MaskingRule(MASK, SIZE, 20, is_continuation=continues)
        one, other = (
            mask_instances(original.astype(dtype), offsets, a_length, rule, GroupDraws(Random(5)))
            for dtype in (np.uint16, np.uint32)
        )
        assert other.input_ids.dtype == other.masked_lm_ids.dtype == np.uint32
        assert all((column == getattr(other, name)).all() for name, column in vars(one).items())


def test_the_masks_of_a_seed_are_fixed():
    """A change here changes every dataset: a new format version."""
    first = [CLS, *range(200, 205), SEP, *range(300, 306), SEP]
    second = [CLS, *range(400, 420), SEP, 500, SEP]
    original, offsets = np.array(first + second, np.uint16), np.array([0, 14, 38])
    run = mask_instances(
        original.copy(), offsets, np.array([7, 22], np.uint16), RULE, GroupDraws(Random(12345))
    )
    assert run.masked_lm_positions.tolist() == [2, 5, 4, 5, 14, 20]
    assert run.masked_offsets.tolist() == [0, 2, 6]
    shown = run.input_ids[flat_positions(run, offsets)].tolist()
    assert shown == [MASK, MASK, 2822, MASK, 413, MASK]
