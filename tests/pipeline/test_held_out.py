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


def numbers_of(held_out):
    return [each.documents for each in held_out.sources]


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
    assert numbers_of(found) == [expected]
    assert found.ids.hex() == "".join(own.lowest_ids[:expected])
    assert found.sources[0].tokens == expected * tokens_each
    assert found.sources[0].last_id == (own.lowest_ids[expected - 1] if expected else None)


def test_every_source_gives_its_share_of_the_tokens():
    """Not the lowest ids of all: the third source's are the highest."""
    others = source(*[400] * 300, first=7), source(*[100] * 200, first=1 << 100)
    corpus = [source(*[100] * 600), *others]
    found = choose_held_out(corpus, 0.1, 1_280_000)
    assert [each.tokens for each in found.sources] == [6000, 12_000, 2000]
    ids = [own.lowest_ids[:n] for own, n in zip(corpus, (60, 30, 20), strict=True)]
    assert split_ids(found.ids) == sorted(map(bytes.fromhex, itertools.chain(*ids)))


def test_a_source_of_giants_gives_nothing_and_takes_nothing_from_the_others():
    giants, many = source(400_000, 200_000), source(*[100] * 4000, first=7)
    found = choose_held_out([giants, many], 0.005, 1_280_000)
    assert numbers_of(found) == [0, 80]
    assert found.sources[0].last_id is None


def test_documents_that_are_too_long_are_passed_over():
    own = source(5000, 100, 100, 1200, *[100] * 80)
    found = choose_held_out([own], 0.01, 1_280_000)
    assert split_ids(found.ids) == [bytes.fromhex(own.lowest_ids[number]) for number in (1, 2, 3)]
    assert found.sources == (HeldOutSource(3, 1400, own.lowest_ids[3]),)
    assert numbers_of(choose_held_out([own], 0.5, 1_280_000)) == [12], "the first one too"
    assert numbers_of(choose_held_out([own], 0.01, 1000)) == [8], "1,200 are over validation_tokens"


def test_a_small_source_gives_a_document_before_large_ones_take_all():
    small, large = source(*[500] * 20), source(*[1000] * 2000, documents=10**6, total=10**9)
    found = choose_held_out([large, small], 0.5, 10_000)
    assert numbers_of(found) == [9, 1]
    assert sum(each.tokens for each in found.sources) <= 10_000


def test_a_second_document_is_held_out_where_one_holds_what_is_wanted():
    own = source(200, *[100] * 28)  # wanted are 150
    assert numbers_of(choose_held_out([own], 0.005, 1_280_000)) == [2]
    assert numbers_of(choose_held_out([own], 0.005, 299)) == [0]


def test_the_second_document_is_the_shortest_that_is_next():
    corpus = [source(*[100] * 20), source(50, 60, *[100] * 10, first=7)]
    assert numbers_of(choose_held_out(corpus, 0.005, 120)) == [0, 2]
    assert numbers_of(choose_held_out(corpus, 0.005, 109)) == [0, 0]


@pytest.mark.parametrize("documents", [0, 1])
def test_too_few_documents(documents):
    with pytest.raises(ValueError, match=f"holds {documents} distinct document"):
        choose_held_out([source(*[5] * documents)], 0.0, 1000)


def test_two_documents_of_a_source_stay_though_one_is_short():
    """The short ones are a fiftieth of their source each: only their number keeps them."""
    pairs = [source(2, 98, first=number) for number in range(4)]
    assert numbers_of(choose_held_out(pairs, 0.1, 10**6)) == [0, 0, 0, 0]


def test_lowest_rows_are_no_more_than_the_share_of_their_source_asks_for():
    """Of two sources of 100 documents of a token, 40 tokens take 20 of each; two more are kept."""
    rows = rows_of(range(200), [0, 1] * 100, 1)
    assert [len(own) for own in find_lowest([rows], [100, 100], 40)] == [22, 22]


def test_two_documents_build_without_a_validation_split():
    assert numbers_of(choose_held_out([source(5, 5)], 0.5, 1000)) == [0]


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
