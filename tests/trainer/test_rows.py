"""Rows brought together in numpy and by the compiled module: the same values."""

import dataclasses
from collections import namedtuple
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shards.block import Block
from tokenizer.compiled import load
from trainer.batches import rows

COMPILED = load("trainer.batches._rows")
PATHS = [None, COMPILED] if COMPILED is not None else [None]
NAMES = "token_type_ids position_ids masked_positions cu_seqlens longest"
Columns = namedtuple("Columns", NAMES.split())
lengths = st.lists(st.integers(0, 9), min_size=1, max_size=40)


def with_path(compiled, function, *arguments):
    """Calls a function of `rows` on one of the two paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "COMPILED", compiled)
        return function(*arguments)


def offsets_of(lengths, dtype=np.int64):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


def block_of(lengths, segments, num_masked, positions):
    """A block of which only lengths and places matter."""
    offsets, masked_offsets = (offsets_of(each, np.int32) for each in (lengths, num_masked))
    return Block(
        input_ids=np.zeros(offsets[-1], np.uint16),
        offsets=offsets,
        segment_a_length=np.array(segments, np.uint16),
        masked_lm_positions=np.array(positions, np.uint16),
        masked_lm_ids=np.zeros(masked_offsets[-1], np.uint16),
        masked_offsets=masked_offsets,
        is_random_next=np.zeros(len(lengths), np.bool_),
        document_a=np.zeros(len(lengths), np.uint64),
        document_b=np.zeros(len(lengths), np.uint64),
    )


def columns_of(compiled, block, cuts):
    firsts, lasts = np.ascontiguousarray(np.array(cuts, np.int64).T)
    return Columns(*with_path(compiled, rows.make_columns, block, firsts, lasts))


@given(lengths, st.sampled_from([np.uint16, np.uint32]), st.data())
def test_both_paths_gather_what_slicing_gives(lengths, dtype, data):
    offsets, values = offsets_of(lengths), np.arange(sum(lengths), dtype=dtype)[::-1].copy()
    bounds = st.tuples(st.integers(0, len(lengths)), st.integers(0, len(lengths))).map(sorted)
    runs = data.draw(st.lists(bounds, min_size=1, max_size=9))
    first, last = np.array(runs, np.int64).T.copy()
    expected = [values[offsets[n] : offsets[n + 1]].tolist() for a, b in runs for n in range(a, b)]
    for path in PATHS:
        into = np.empty(len(expected) + 1, np.int32), np.empty(sum(map(len, expected)), dtype)
        with_path(path, rows.gather_lists, first, last, offsets * values.itemsize, values, *into)
        assert [into[1][a:b].tolist() for a, b in pairwise(into[0])] == expected


@given(st.lists(st.integers(2, 300), min_size=1, max_size=300), st.data())
def test_both_paths_fill_columns_of_any_lengths(lengths, data):
    segment = np.array([data.draw(st.integers(0, length)) for length in lengths[:5]], np.uint16)
    segment = np.resize(segment, len(lengths)) % np.array(lengths, np.uint16)
    counts = np.minimum(lengths, 3)
    block = block_of(lengths, segment, counts, np.concatenate([np.arange(n) for n in counts]))
    inner = data.draw(st.lists(st.integers(0, len(lengths)), max_size=4).map(sorted))
    cuts = list(pairwise([0, *inner, len(lengths)]))
    for path in PATHS:
        into = columns_of(path, block, cuts)
        assert into.position_ids.tolist() == [n for length in lengths for n in range(length)]
        types = [int(n >= a) for a, m in zip(segment, lengths, strict=True) for n in range(m)]
        assert into.token_type_ids.tolist() == types
        starts = [[sum(lengths[first:n]) for n in range(first, last + 1)] for first, last in cuts]
        assert into.cu_seqlens.tolist() == [start for each in starts for start in each]
        places = [start for each in starts for start in each[:-1]]
        pairs = zip(places, counts, strict=True)
        assert into.masked_positions.tolist() == [start + n for start, m in pairs for n in range(m)]
        assert into.longest.tolist() == [max(lengths[a:b], default=0) for a, b in cuts]


def test_places_past_65535_tokens_begin_anew_with_each_instance():
    for path in PATHS:
        into = columns_of(path, block_of([50_000] * 4, [10] * 4, [0] * 4, []), [(0, 4)])
        assert (into.position_ids.reshape(4, -1) == np.arange(50_000)).all()
        assert int(into.token_type_ids.sum()) == 4 * 49_990


@pytest.mark.parametrize(
    ("change", "cuts", "said"),
    [
        ({"offsets": np.array([0, 3, 9], np.int32)}, [(0, 2)], "lengths that do not fit"),
        ({"offsets": np.array([0, -3, 7], np.int32)}, [(0, 2)], "lengths that do not fit"),
        ({"segment_a_length": np.array([4, 1], np.uint16)}, [(0, 2)], "lengths that do not fit"),
        ({"masked_offsets": np.array([0, 1, 4], np.int32)}, [(0, 2)], "offsets that do not fit"),
        ({"masked_offsets": np.array([0, 2, 1], np.int32)}, [(0, 2)], "offsets that do not fit"),
        ({"segment_a_length": np.array([2], np.uint16)}, [(0, 2)], "arrays that do not fit tog"),
        ({}, [(0, 3)], "a cut lies outside"),
        ({}, [(-1, 2)], "a cut lies outside"),
        ({}, [(2, 1), (0, 2)], "a cut lies outside"),
    ],
)
@pytest.mark.skipif(COMPILED is None, reason="the compiled modules are not built")
def test_the_compiled_module_fills_nothing_outside_its_arrays(change, cuts, said):
    block = dataclasses.replace(block_of([3, 4], [2, 1], [1, 2], [1, 0, 3]), **change)
    with pytest.raises(ValueError, match=f"fill_columns: {said}"):
        columns_of(COMPILED, block, cuts)


@pytest.mark.skipif(COMPILED is None, reason="the compiled modules are not built")
def test_the_compiled_module_refuses_what_lies_outside_its_arrays():
    one, ids, offsets = np.array([0]), np.arange(4, dtype=np.uint16), np.array([0, 4, 8])
    into = np.empty(3, np.int32), np.empty(4, np.uint16)
    for first, last in [(one, one + 3), (one - 1, one + 1), (one + 2, one + 1), (one, one + 1)]:
        with pytest.raises(ValueError, match="gather_lists"):
            COMPILED.gather_lists(first, last, offsets, ids, 2, *into)
    with pytest.raises(ValueError, match="array 2 has items of 2 bytes, not 8"):
        COMPILED.gather_lists(one, one + 2, ids, ids, 2, *into)
