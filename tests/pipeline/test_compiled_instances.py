"""The compiled loops give what plain Python gives, bit for bit, and refuse arrays that do not fit each other."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.instances.compiled as compiled
from pipeline.instances.build_bucket import InstanceRule, build_bucket, gather_documents
from pipeline.instances.gather import gather_pairs
from pipeline.instances.masking import MaskingRule, mask_run
from pipeline.instances.pairs import make_pairs
from pipeline.shards.block import block_digest
from pipeline.tokens.token_parts import TokenizedDocument
from tokenizer.compiled import load

CLS, SEP, MASK, SIZE = 101, 102, 103, 3000
CONTINUATIONS = np.arange(SIZE) % 3 == 0

loops = load("pipeline.instances._instances")
pytestmark = pytest.mark.skipif(
    loops is None, reason="the compiled loops are not there, or BEAMBERT_COMPILED is 0"
)


def both(function, *arguments, **named):
    """What a function gives by each path."""
    found = []
    for each in (None, loops):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled, "loops", each)
            found.append(function(*arguments, **named))
    return found


def assert_same(one, other):
    for name, column in vars(one).items():
        assert column.dtype == getattr(other, name).dtype, name
        assert column.tolist() == getattr(other, name).tolist(), name


@st.composite
def corpora(draw):
    """Sentence lengths, sentence offsets, and rows with seeds."""
    length = st.one_of(st.integers(1, 3), st.integers(1, 60), st.integers(200, 700))
    sizes = draw(st.lists(st.integers(1, 40), min_size=2, max_size=7))
    lengths = draw(st.lists(length, min_size=sum(sizes), max_size=sum(sizes)))
    rows = draw(st.one_of(st.none(), st.lists(st.integers(0, len(sizes) - 1), max_size=12)))
    seed = st.one_of(
        st.integers(0, 2**128 - 1),
        st.integers(-(2**40), 2**700),
        st.sampled_from([0, 2**32, 2**64 - 1]),
    )
    num_uses = len(sizes) if rows is None else len(rows)
    seeds = draw(st.lists(seed, min_size=num_uses, max_size=num_uses))
    return np.array(lengths, np.uint16), np.cumsum([0, *sizes]), seeds, rows


@settings(max_examples=300, deadline=None)
@given(
    corpus=corpora(),
    seq_len=st.integers(5, 300),
    short_seq_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    nsp_balance=st.sampled_from(["reference", "exact"]),
    token_dtype=st.sampled_from([np.uint16, np.uint32]),
)
def test_pairs_and_their_tokens(corpus, seq_len, short_seq_prob, nsp_balance, token_dtype):
    lengths, offsets, seeds, rows = corpus
    one, other = both(
        make_pairs, lengths, offsets, seeds, seq_len, short_seq_prob, nsp_balance, rows
    )
    assert_same(one, other)
    tokens = np.arange(lengths.sum(dtype=np.int64)).astype(token_dtype)
    assert_same(*both(gather_pairs, tokens, one, CLS, SEP))
    assert_same(*both(gather_pairs, tokens, one.take(slice(2, 9)), CLS, SEP))


def test_pairs_of_many_documents():
    """Long enough for every generator to be refilled, and for chances that only many pairs bring about."""
    rng = Random(8)
    sizes = [rng.choice((1, 2, 30, 400)) for _ in range(300)]
    lengths = np.array([rng.choice((1, 5, 20, 30, 60, 900)) for _ in range(sum(sizes))])
    seeds = [rng.getrandbits(128) for _ in sizes]
    for nsp_balance in ("reference", "exact"):
        one, other = both(
            make_pairs, lengths, np.cumsum([0, *sizes]), seeds, 128, nsp_balance=nsp_balance
        )
        assert len(one) > 5000
        assert_same(one, other)


@settings(max_examples=300, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 70)), max_size=12),
    copies=st.sampled_from([1, 300]),
    seed=st.integers(0, 2**64),
    probability=st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    max_predictions=st.sampled_from([1, 20, 500]),
    whole_words=st.booleans(),
    dtype=st.sampled_from([np.uint16, np.uint32]),
)
def test_masks(shapes, copies, seed, probability, max_predictions, whole_words, dtype):
    shapes = shapes * copies
    lengths = np.array([a + b + 3 for a, b in shapes], np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = np.random.default_rng(seed).integers(0, SIZE, offsets[-1]).astype(dtype)
    a_length = np.array([a + 2 for a, _ in shapes], np.uint16)
    rule = MaskingRule(
        MASK, SIZE, max_predictions, probability, CONTINUATIONS if whole_words else None
    )
    generators = [Random(seed), Random(seed)]
    one, other = both(lambda: mask_run(ids, offsets, a_length, rule, generators.pop()))
    assert_same(one, other)


def test_masks_draw_as_often_from_their_generator():
    ids = np.arange(200, 200 + 2050 * 8).astype(np.uint16) % SIZE
    offsets, a_length = np.arange(2051) * 8, np.full(2050, 4, np.uint16)
    for whole_words, count in product((None, CONTINUATIONS), (0, 1, 1024, 2050)):
        rule = MaskingRule(MASK, SIZE, 20, is_continuation=whole_words)
        arguments = ids[: 8 * count], offsets[: count + 1], a_length[:count], rule
        one, other = both(lambda run: (mask_run(*run, rng := Random(5)), rng.random()), arguments)
        assert one[1] == other[1]


@pytest.mark.parametrize("token_dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("weights", [(), (1_500_000, 300_000)])
@pytest.mark.parametrize("whole_words", [False, True])
def test_the_blocks_of_a_bucket(token_dtype, weights, whole_words):
    rng = np.random.default_rng(3)
    documents = []
    for _ in range(60):
        lengths = rng.integers(1, 70, rng.integers(1, 40)).astype(np.uint16)
        tokens = rng.integers(0, SIZE, lengths.sum(dtype=np.int64)).astype(token_dtype)
        documents.append(
            TokenizedDocument(rng.bytes(16), 0, lengths, tokens, source=int(rng.integers(0, 2)))
        )
    masking = MaskingRule(MASK, SIZE, 20, is_continuation=CONTINUATIONS if whole_words else None)
    rule = InstanceRule(128, 12345, 0.1, CLS, SEP, masking, "exact", weights)
    bucket = gather_documents(documents)
    one, other = both(
        lambda: [block_digest(block) for block in build_bucket(bucket, rule, 1, "train-0")]
    )
    assert one == other
    assert len(one) > 0


def call_pairs(**changes):
    arguments = {
        "bounds": np.arange(0, 90, 9), "firsts": np.array([0, 4, 9]), "rows": np.array([0, 1]),
        "seeds": np.arange(2, dtype=np.uint32), "digits": 1, "max_tokens": 20, "short": 0.1, "exact": -1,
        **{name: np.empty(9, np.int64) for name in ("a_start", "a_stop", "b_start", "b_stop")},
        **{name: np.empty(9, np.int32) for name in ("document_a", "document_b")},
        "is_random_next": np.empty(9, np.bool_),
    }  # fmt: skip
    return loops.make_pairs(*(arguments | changes).values())


def call_gather(**changes):
    arguments = {
        "tokens": np.arange(50, dtype=np.uint16), "item_bytes": 2, "a_start": np.array([0, 4]),
        "a_stop": np.array([3, 9]), "b_start": np.array([10, 48]), "b_stop": np.array([12, 50]), "cls": 1, "sep": 2,
        "offsets": np.array([0, 8, 18]), "out": np.empty(18, np.uint16),
    }  # fmt: skip
    return loops.gather_pairs(*(arguments | changes).values())


def call_mask(**changes):
    arguments = {
        "ids": np.arange(16, dtype=np.uint16), "item_bytes": 2, "offsets": np.array([0, 8, 16]),
        "a_length": np.full(2, 4, np.uint16), "counts": np.array([1, 5]), "grid_rows": 1,
        "bases": np.arange(3, dtype=np.uint64), "continues": np.zeros(0, np.bool_), "mask": 3, "vocab": 100,
        "masked_offsets": np.empty(3, np.int64), "positions": np.empty(7, np.uint16), "labels": np.empty(6, np.uint16),
    }  # fmt: skip
    return loops.mask_instances(*(arguments | changes).values())


def test_arrays_that_fit_are_taken():
    assert 2 <= call_pairs() <= 9
    assert call_gather() is None
    assert call_mask() == 6
    assert call_mask(continues=np.zeros(16, np.bool_), bases=np.arange(2, dtype=np.uint64)) == 6


def unaligned(values):
    return np.frombuffer(b"\0" + values.tobytes(), values.dtype, offset=1)


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        (call_pairs, {"bounds": np.array([0, 9, 9, 18, 27, 36, 45, 54, 63, 72])}),
        (call_pairs, {"bounds": np.arange(1, 91, 9)}),
        (call_pairs, {"bounds": np.array([0, *range(2**62, 2**62 + 9)])}),
        (call_pairs, {"bounds": np.arange(0, 81, 9)}),
        (call_pairs, {"bounds": np.zeros(0, np.int64)}),
        (call_pairs, {"bounds": np.arange(0, 90, 9, dtype=np.int32)}),
        (call_pairs, {"firsts": np.array([0, 4, 10])}),
        (call_pairs, {"firsts": np.array([-1, 4, 9])}),
        (call_pairs, {"firsts": np.array([0, 4, 4, 9])}),
        (call_pairs, {"firsts": np.array([0, 9])}),
        (call_pairs, {"rows": np.array([0, 2])}),
        (call_pairs, {"rows": np.array([-1, 0])}),
        (call_pairs, {"rows": np.array([1, 1]), "seeds": np.arange(3, dtype=np.uint32)}),
        (call_pairs, {"rows": np.array([1, 1]), "seeds": np.arange(2, dtype=np.uint32)}),
        (call_pairs, {"digits": 0}),
        (call_pairs, {"digits": 2}),
        (call_pairs, {"max_tokens": 1}),
        (call_pairs, {"max_tokens": 65_536}),
        (call_pairs, {"a_start": np.empty(8, np.int64)}),
        (call_pairs, {"b_stop": np.empty(10, np.int64)}),
        (call_pairs, {"document_b": np.empty(8, np.int32)}),
        (call_pairs, {"is_random_next": np.empty(8, np.bool_)}),
        (call_pairs, {"bounds": unaligned(np.arange(0, 90, 9))}),
        (call_gather, {"a_start": np.array([-1, 4])}),
        (call_gather, {"a_start": np.array([4, 4])}),
        (call_gather, {"b_stop": np.array([12, 51])}),
        (call_gather, {"b_start": np.array([10, 51])}),
        (call_gather, {"b_stop": np.array([12])}),
        (call_gather, {"a_stop": np.array([2**63 - 1, 9])}),
        (call_gather, {"offsets": np.array([0, 8, 17])}),
        (call_gather, {"offsets": np.array([-8, 0, 10])}),
        (call_gather, {"offsets": np.array([0, 8])}),
        (call_gather, {"out": np.empty(17, np.uint16)}),
        (call_gather, {"item_bytes": 3}),
        (call_gather, {"item_bytes": 0}),
        (call_mask, {"offsets": np.array([0, 8, 17])}),
        (call_mask, {"offsets": np.array([0, 13, 16])}),
        (call_mask, {"offsets": np.array([0, 17, 16])}),
        (call_mask, {"offsets": np.zeros(0, np.int64)}),
        (call_mask, {"a_length": np.array([4, 8], np.uint16)}),
        (call_mask, {"a_length": np.array([1, 4], np.uint16)}),
        (call_mask, {"counts": np.array([0, 6])}),
        (call_mask, {"counts": np.array([1, 6]), "positions": np.empty(8, np.uint16)}),
        (call_mask, {"counts": np.array([-1, 5])}),
        (call_mask, {"grid_rows": 0}),
        (call_mask, {"grid_rows": 2}),
        (call_mask, {"bases": np.arange(2, dtype=np.uint64)}),
        (call_mask, {"continues": np.zeros(16, np.bool_)}),
        (call_mask, {"continues": np.zeros(15, np.bool_), "bases": np.arange(2, dtype=np.uint64)}),
        (call_mask, {"masked_offsets": np.empty(2, np.int64)}),
        (call_mask, {"positions": np.empty(6, np.uint16)}),
        (call_mask, {"labels": np.empty(5, np.uint16)}),
        (call_mask, {"item_bytes": 4}),
        (call_mask, {"item_bytes": -2}),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(call, changes):
    with pytest.raises(ValueError, match=r"do not fit each other|aligned items"):
        call(**changes)


def test_columns_are_not_written_where_they_are_read_only():
    out = np.empty(18, np.uint16)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError, TypeError)):
        call_gather(out=out)
