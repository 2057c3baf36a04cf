"""Instances of one segment: every token once, whole sentences, long ones in equal pieces."""

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.instances import masking, single_segments
from pipeline.instances import pairs as pairs_module
from pipeline.instances.masking import GroupDraws, MaskingRule, mask_instances
from pipeline.instances.pairs import gather_pairs
from pipeline.instances.single_segments import cut_segments
from pipeline.seeds import draw_below
from tests.compiled_paths import taken_path

CLS, SEP, MASK, SIZE = 101, 102, 103, 3000


def flatten(documents):
    lengths = np.array([length for document in documents for length in document])
    return lengths, np.cumsum([0, *map(len, documents)])


def spans_of(documents, seq_len, kind, *, short=0.0, seeds=None):
    """The spans of the segments, each with its document, as tokens counted from the first one."""
    seeds = seeds or range(len(documents))
    pairs = cut_segments(*flatten(documents), seeds, seq_len, kind, short)
    assert not pairs.is_random_next.any()
    assert (pairs.document_b == pairs.document_a).all()
    assert (pairs.b_start == pairs.b_stop).all()
    columns = pairs.document_a, pairs.a_start, pairs.a_stop
    return list(zip(*map(np.ndarray.tolist, columns), strict=True))


def plain_spans(documents, seq_len, kind, short, seeds):
    """What cut_segments promises, one sentence and one piece after another."""
    spans, most, first = [], seq_len - 2, 0
    for document, (sentences, seed) in enumerate(zip(documents, seeds, strict=True)):
        target = most
        rng = Random(seed)
        if rng.random() < short:
            target = 2 + draw_below(most - 1, rng.getrandbits)
        chunks = []
        for length in sentences:
            fits = kind == "doc-sentences" and chunks and chunks[-1] + length <= target
            if fits:
                chunks[-1] += length
            else:
                chunks.append(length)
        for length in chunks:
            count = -(-length // most)
            cuts = [first + number * length // count for number in range(count + 1)]
            spans += [(document, *span) for span in itertools.pairwise(cuts)]
            first += length
    return spans


buckets = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=8)


@given(
    documents=buckets,
    seq_len=st.integers(8, 70),
    kind=st.sampled_from(["doc-sentences", "single-sentence"]),
    short=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**120),
)
def test_segments_are_those_of_the_plain_rule(documents, seq_len, kind, short, seed):
    seeds = [seed + number for number in range(len(documents))]
    found = spans_of(documents, seq_len, kind, short=short, seeds=seeds)
    assert found == plain_spans(documents, seq_len, kind, short, seeds)
    ends = [0, *(stop for _, _, stop in found)]
    assert [start for _, start, _ in found] == ends[:-1], "no token is lost or used twice"
    assert ends[-1] == sum(map(sum, documents))
    assert all(0 < stop - start <= seq_len - 2 for _, start, stop in found)


def test_sentences_are_joined_as_long_as_they_fit_into_one_document():
    documents = [[3, 3, 4, 5, 9], [2, 2]]
    assert spans_of(documents, 12, "doc-sentences") == [
        (0, 0, 10), (0, 10, 15), (0, 15, 24), (1, 24, 28),
    ]  # fmt: skip
    assert spans_of(documents, 12, "single-sentence") == [
        (0, 0, 3), (0, 3, 6), (0, 6, 10), (0, 10, 15), (0, 15, 24), (1, 24, 26), (1, 26, 28),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["doc-sentences", "single-sentence"])
def test_a_long_sentence_is_cut_into_pieces_of_equal_length(kind):
    pieces = spans_of([[2, 11, 3]], 7, kind)
    assert [stop - start for _, start, stop in pieces] == [2, 3, 4, 4, 3]


def test_a_document_is_cut_as_often_as_it_is_used():
    lengths, offsets = flatten([[4], [5, 6], [7]])
    pairs = cut_segments(lengths, offsets, [1, 2, 3], 32, "single-sentence", rows=[1, 1, 2])
    assert pairs.document_a.tolist() == [1, 1, 1, 1, 2]
    assert pairs.a_start.tolist() == [4, 9, 4, 9, 15]


def test_short_targets_are_those_of_pairs():
    """The same seed draws the same target for both; 1.2 of docs/parity.md."""
    rng = Random(7)
    assert rng.random() < 0.5
    target = 2 + draw_below(29, rng.getrandbits)
    found = single_segments._draw_target(Random(7), 30, 0.5)
    assert found == target


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9), seed=st.integers(0, 2**64))
def test_both_paths_gather_and_mask_the_same(lengths, seed):
    """Pairs and single segments in turn: [CLS] A [SEP] with B [SEP] or without."""
    rng = Random(seed)
    tokens = np.array(rng.choices(range(200, SIZE), k=200), np.uint16)
    starts = [rng.randrange(140) for _ in lengths]
    rows = [
        (0, start, start + length, 0, 150, 150 + number % 2 * length % 50, False)
        for number, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    dtypes = pairs_module._DTYPES
    columns = [
        np.array(each, kind) for each, kind in zip(zip(*rows, strict=True), dtypes, strict=True)
    ]
    pairs = pairs_module.Pairs(*columns)
    expected = []
    for _, start, stop, _, b_start, b_stop, _ in rows:
        second = [*tokens[b_start:b_stop], SEP] if b_stop > b_start else []
        expected.append([CLS, *tokens[start:stop], SEP, *second])
    found = []
    for path in ("python", "compiled"):
        with taken_path(path, "pipeline.instances._instances", pairs_module, "loops"):
            packed = gather_pairs(tokens, pairs, CLS, SEP)
        assert packed.offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
        assert packed.input_ids.tolist() == [token for row in expected for token in row]
        rule = MaskingRule(MASK, SIZE, 200, [0.15, 1.0][seed % 2])
        columns = packed.offsets, packed.segment_a_length
        with taken_path(path, "pipeline.instances._instances", masking, "loops"):
            run = mask_instances(packed.input_ids.copy(), *columns, rule, GroupDraws(Random(seed)))
        found.append({name: column.tolist() for name, column in vars(run).items()})
    assert found[0] == found[1]
    for row, ids in enumerate(expected):
        places = run.masked_lm_positions[run.masked_offsets[row] : run.masked_offsets[row + 1]]
        words = [place for place, token in enumerate(ids) if token >= 200]
        assert set(places.tolist()) <= set(words)
        assert len(places) == (len(words) if seed % 2 else max(1, round(len(ids) * 0.15)))


def test_whole_words_are_masked_up_to_the_end_of_a_single_segment():
    ids = np.array([CLS, 200, 201, 204, SEP, CLS, 207, SEP], np.uint16)
    offsets = np.array([0, 5, 8])
    continues = np.isin(np.arange(SIZE), [201, 204])
    rule = MaskingRule(MASK, SIZE, 20, 0.99, continues)
    lengths = np.array([5, 3], np.uint16)
    run = mask_instances(ids.copy(), offsets, lengths, rule, GroupDraws(Random(1)))
    assert run.masked_lm_positions.tolist() == [1, 2, 3, 1]
    assert run.masked_lm_ids.tolist() == [200, 201, 204, 207]
