"""Which documents are validation: of every source, bounded in tokens, however work is cut."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pipeline.tokens.grouped_rows import NUM_GROUPS
from pipeline.tokens.held_out import (
    HeldOutSource,
    SourceTotals,
    choose_held_out,
    find_lowest,
    is_held_out,
    split_ids,
    wanted_tokens,
)
from pipeline.tokens.token_index import join_ranges
from pipeline.tokens.token_parts import INDEX_DTYPE, join_id


def source(*tokens, first=0, total=None, documents=None):
    """A source whose documents have these tokens, and the ids first, first + 100 and so on."""
    ids = [(first + 100 * number).to_bytes(16, "big").hex() for number in range(len(tokens))]
    documents, total = documents or len(tokens), total or sum(tokens)
    listed = {"lowest_ids": ids, "lowest_tokens": list(tokens)}
    return SourceTotals(documents, tokens=total, **listed)


@pytest.mark.parametrize(
    ("total", "fraction", "most", "expected"),
    [
        (1_000_000_000, 0.005, 1_280_000, 1_280_000),
        (100_000_000, 0.005, 1_280_000, 500_000),
        (1_000_000, 0.005, 1_280_000, 20_000),  # half a percent would be 40 instances
        (100_000, 0.005, 1_280_000, 5_000),
        (100_000, 0.3, 1_280_000, 30_000),
        (100_000, 0.0, 1_280_000, 0),
    ],
)
def test_tokens_are_bounded_on_both_sides(total, fraction, most, expected):
    assert wanted_tokens(total, fraction, most) == expected


@pytest.mark.parametrize(
    ("documents", "tokens_each", "fraction", "most", "expected"),
    [
        (10_000, 100, 0.005, 1_280_000, 200),  # 20,000 tokens
        (100_000, 100, 0.005, 1_280_000, 500),
        (100_000, 100_000, 0.005, 1_280_000, 12),
        (100_000, 2_000_000, 0.005, 1_280_000, 0),  # not one may be taken
        (100, 100, 0.005, 1_280_000, 5),
        (100, 100, 0.005, 350, 3),
        (20, 100, 0.005, 1_280_000, 2),
        (19, 100, 0.005, 1_280_000, 0),  # two are over a tenth
        (19, 100, 0.11, 1_280_000, 2),  # and may be taken if asked for
        (4, 100, 0.9, 1_280_000, 2),  # two are left to train on
        (3, 100, 0.9, 1_280_000, 0),
    ],
)
def test_one_source(documents, tokens_each, fraction, most, expected):
    listed = min(documents, 2000)
    own = source(*[tokens_each] * listed, documents=documents, total=documents * tokens_each)
    found = choose_held_out([own], fraction, most)
    assert found.ids.hex() == "".join(own.lowest_ids[:expected])
    last_id = own.lowest_ids[expected - 1] if expected else None
    assert found.sources == (HeldOutSource(expected, expected * tokens_each, last_id),)


def test_every_source_gives_its_share_of_the_tokens():
    """Not the lowest ids of all: the third source's are the highest."""
    others = source(*[400] * 300, first=7), source(*[100] * 200, first=1 << 100)
    corpus = [source(*[100] * 600), *others]
    found = choose_held_out(corpus, 0.1, 1_280_000)
    assert [each.tokens for each in found.sources] == [6000, 12_000, 2000]
    ids = [own.lowest_ids[:n] for own, n in zip(corpus, (60, 30, 20), strict=True)]
    assert split_ids(found.ids) == sorted(map(bytes.fromhex, itertools.chain(*ids)))


LARGE = source(*[1000] * 2000, documents=10**6, total=10**9)
LONG_FIRST = source(5000, 100, 100, 1200, *[100] * 80)
HOLDS_ALL = source(200, *[100] * 28)  # wanted are 150
SHORT = [source(*[100] * 20), source(50, 60, *[100] * 10, first=7)]


@pytest.mark.parametrize(
    ("corpus", "fraction", "most", "documents"),
    [
        # A source of giants gives nothing and takes nothing from the others.
        ([source(400_000, 200_000), source(*[100] * 4000, first=7)], 0.005, 1_280_000, [0, 80]),
        # A small one gives a document before large ones take all.
        ([LARGE, source(*[500] * 20)], 0.5, 10_000, [9, 1]),
        ([LONG_FIRST], 0.5, 1_280_000, [12]),  # the first one too
        ([LONG_FIRST], 0.01, 1000, [8]),  # 1,200 are over validation_tokens
        # A second document is held out where one holds what is wanted.
        ([HOLDS_ALL], 0.005, 1_280_000, [2]),
        ([HOLDS_ALL], 0.005, 299, [0]),
        # The second document is the shortest that is next.
        (SHORT, 0.005, 120, [0, 2]),
        (SHORT, 0.005, 109, [0, 0]),
        # The short ones are a fiftieth of their source each: only their number keeps them.
        ([source(2, 98, first=number) for number in range(4)], 0.1, 10**6, [0, 0, 0, 0]),
        ([source(5, 5)], 0.5, 1000, [0]),
    ],
)
def test_sources_give_in_turn(corpus, fraction, most, documents):
    found = choose_held_out(corpus, fraction, most)
    assert [each.documents for each in found.sources] == documents
    assert sum(each.tokens for each in found.sources) <= most
    assert [each.last_id is None for each in found.sources] == [not each for each in documents]


def test_documents_that_are_too_long_are_passed_over():
    own = LONG_FIRST
    found = choose_held_out([own], 0.01, 1_280_000)
    assert split_ids(found.ids) == [bytes.fromhex(own.lowest_ids[number]) for number in (1, 2, 3)]
    assert found.sources == (HeldOutSource(3, 1400, own.lowest_ids[3]),)


@pytest.mark.parametrize("documents", [0, 1])
def test_too_few_documents(documents):
    with pytest.raises(ValueError, match=f"holds {documents} distinct document"):
        choose_held_out([source(*[5] * documents)], 0.0, 1000)


def test_lowest_rows_are_no_more_than_the_share_of_their_source_asks_for():
    """Of two sources of 100 documents of a token, 40 tokens take 20 of each; two more are kept."""
    rows = rows_of(range(200), [0, 1] * 100, 1)
    assert [len(own) for own in find_lowest([rows], [100, 100], 40)] == [22, 22]


def rows_of(ids, sources, tokens):
    rows = np.zeros(len(ids), INDEX_DTYPE)
    rows["high"], rows["low"] = ids, 5
    rows["source"], rows["tokens"] = sources, tokens
    return rows


def test_lowest_rows_are_those_that_any_fraction_asks_for():
    """Held against the choice from all documents, whatever groups they come in."""
    rng = np.random.default_rng(3)
    ids = np.sort(rng.integers(0, 2**63, 3000).astype(np.uint64) * 2)
    sources = np.minimum(rng.integers(0, 12, 3000), 3)
    rows = rows_of(ids, sources, rng.integers(1, 400, 3000))
    rows["tokens"][[0, 1, 7, 30, 900]] = 200_000, 60_000, 30_000, 9000, 250_000
    whole = [source_of(rows[rows["source"] == number]) for number in range(4)]
    for most, cuts in itertools.product((300, 5000, 80_000), (1, 7, NUM_GROUPS)):
        kept = find_lowest(np.array_split(rows, cuts), [own.tokens for own in whole], most)
        few = [source_of(own, like) for own, like in zip(kept, whole, strict=True)]
        assert sum(map(len, kept)) < sum(own.documents for own in whole)
        for fraction in (0.001, 0.01, 0.1, 0.7):
            assert choose_held_out(few, fraction, most) == choose_held_out(whole, fraction, most)


def source_of(rows, like=None):
    ids = [join_id(row["high"], row["low"]).hex() for row in rows]
    like = like or SourceTotals(len(rows), tokens=int(rows["tokens"].sum()))
    return replace(like, lowest_ids=ids, lowest_tokens=rows["tokens"].tolist())


def test_rows_of_held_out_documents_are_told_in_any_order():
    rows = rows_of([9, 3, 3, 0, 7, 2**64 - 1], 0, 1)
    held_out = b"".join(join_id(high, 5) for high in (0, 3, 2**64 - 1)) + join_id(2**64 - 1, 6)
    assert is_held_out(rows, held_out).tolist() == [False, True, True, True, False, True]
    assert not is_held_out(rows, b"").any()
    assert is_held_out(rows[:0], held_out).tolist() == []


def test_documents_next_to_each_other_are_one_range():
    rows = np.zeros(4, INDEX_DTYPE)
    rows["offset"], rows["size"] = [10, 15, 40, 41], [5, 20, 1, 9]
    assert join_ranges(rows) == [(10, 35), (40, 50)]
    assert join_ranges(rows[:0]) == []
