"""Rows brought together in numpy and by the compiled module: the same values, by hand and for any runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.compiled import load
from trainer.stream import rows

COMPILED = load("trainer._rows")
PATHS = [None, COMPILED] if COMPILED is not None else [None]
both_paths = pytest.mark.parametrize("compiled", PATHS, ids=["numpy", "compiled"][: len(PATHS)])


def with_path(compiled, function, *arguments):
    """Calls a function of `rows` on one of the two paths; its last arguments are filled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "COMPILED", compiled)
        function(*arguments)


def offsets_of(lengths, width=1, dtype=np.int64):
    return (np.concatenate([[0], np.cumsum(lengths)]) * width).astype(dtype)


@both_paths
def test_lists_by_hand(compiled):
    values = np.array([10, 11, 12, 20, 30, 31], np.uint16)
    into = (np.empty(4, np.int32), np.empty(6, np.uint16))
    first, last = np.array([2, 0]), np.array([4, 1])
    with_path(compiled, rows.gather_lists, first, last, offsets_of([3, 0, 1, 2], 2), values, into)
    assert into[0].tolist() == [0, 1, 3, 6]
    assert into[1].tolist() == [20, 30, 31, 10, 11, 12]


@both_paths
def test_columns_of_two_instances_by_hand(compiled):
    offsets, types, places = np.array([0, 3, 7], np.int32), np.empty(7, np.uint8), np.empty(7, np.uint16)
    with_path(compiled, rows.fill_token_columns, offsets, np.array([2, 1], np.uint16), types, places)
    assert types.tolist() == [0, 0, 1, 0, 1, 1, 1]
    assert places.tolist() == [0, 1, 2, 0, 1, 2, 3]
    masked = np.empty(3, np.int32)
    positions = np.array([1, 0, 3], np.uint16)
    with_path(compiled, rows.fill_masked_positions, offsets, np.array([0, 1, 3], np.int32), positions, masked)
    assert masked.tolist() == [1, 3, 6]


lengths = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(lengths, st.sampled_from([np.uint16, np.uint32]), st.data())
def test_both_paths_gather_what_slicing_gives(lengths, dtype, data):
    offsets, values = offsets_of(lengths), np.arange(sum(lengths), dtype=dtype)[::-1].copy()
    bounds = st.tuples(st.integers(0, len(lengths)), st.integers(0, len(lengths))).map(sorted)
    runs = data.draw(st.lists(bounds, min_size=1, max_size=9))
    first, last = np.array(runs, np.int64).T.copy()
    expected = [values[offsets[n] : offsets[n + 1]].tolist() for a, b in runs for n in range(a, b)]
    for path in PATHS:
        into = np.empty(len(expected) + 1, np.int32), np.empty(sum(map(len, expected)), dtype)
        with_path(path, rows.gather_lists, first, last, offsets * values.itemsize, values, into)
        assert [into[1][a:b].tolist() for a, b in zip(into[0], into[0][1:], strict=False)] == expected
        flat = np.empty(len(expected), dtype)
        column = np.arange(len(lengths), dtype=dtype)
        with_path(path, rows.gather_values, first, last, column, flat)
        assert flat.tolist() == [n for a, b in runs for n in range(a, b)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(2, 300), min_size=1, max_size=300), st.data())
def test_both_paths_fill_columns_of_any_lengths(lengths, data):
    offsets = offsets_of(lengths, dtype=np.int32)
    segment = np.array([data.draw(st.integers(0, length)) for length in lengths[:5]], np.uint16)
    segment = np.resize(segment, len(lengths)) % np.array(lengths, np.uint16)
    counts = np.minimum(lengths, 3)
    masked_offsets, positions = offsets_of(counts, dtype=np.int32), np.concatenate([np.arange(n) for n in counts])
    for path in PATHS:
        types, places = np.empty(offsets[-1], np.uint8), np.empty(offsets[-1], np.uint16)
        with_path(path, rows.fill_token_columns, offsets, segment, types, places)
        assert places.tolist() == [n for length in lengths for n in range(length)]
        assert types.tolist() == [int(n >= a) for a, m in zip(segment, lengths, strict=True) for n in range(m)]
        into = np.empty(len(positions), np.int32)
        with_path(path, rows.fill_masked_positions, offsets, masked_offsets, positions.astype(np.uint16), into)
        assert into.tolist() == [start + n for start, m in zip(offsets[:-1], counts, strict=True) for n in range(m)]


@both_paths
def test_places_past_65535_tokens_begin_anew_with_each_instance(compiled):
    offsets = np.arange(0, 200_001, 50_000, dtype=np.int32)
    types, places = np.empty(200_000, np.uint8), np.empty(200_000, np.uint16)
    with_path(compiled, rows.fill_token_columns, offsets, np.full(4, 10, np.uint16), types, places)
    assert (places.reshape(4, -1) == np.arange(50_000)).all()
    assert int(types.sum()) == 4 * 49_990


@pytest.mark.skipif(COMPILED is None, reason="the compiled modules are not built")
def test_the_compiled_module_refuses_what_lies_outside_its_arrays():
    one, ids, offsets = np.array([0]), np.arange(4, dtype=np.uint16), np.array([0, 4, 8])
    into = np.empty(3, np.int32), np.empty(4, np.uint16)
    for first, last in [(one, one + 3), (one - 1, one + 1), (one + 2, one + 1), (one, one + 1)]:
        with pytest.raises(ValueError, match="gather_lists"):
            COMPILED.gather_lists(first, last, offsets, ids, 2, *into)
    with pytest.raises(ValueError, match="array 2 has items of 2 bytes, not 8"):
        COMPILED.gather_lists(one, one + 2, ids, ids, 2, *into)
    with pytest.raises(ValueError, match="gather_values"):
        COMPILED.gather_values(one, one + 5, ids, 2, np.empty(5, np.uint16))
    lengths = np.array([0, 9], np.int32)
    with pytest.raises(ValueError, match="lengths that do not fit"):
        COMPILED.fill_token_columns(lengths, np.array([1], np.uint16), np.empty(4, np.uint8), np.empty(4, np.uint16))
    with pytest.raises(ValueError, match="offsets that do not fit"):
        COMPILED.fill_masked_positions(lengths, lengths, ids, np.empty(4, np.int32))
