"""Rows brought together and packed: what slicing instance by instance gives."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shards.block import Block
from trainer.stream.batches.pack import pack_micro_batches
from trainer.stream.batches.rows import gather_rows

lengths = st.lists(st.integers(2, 300), min_size=1, max_size=40)


def block_of(lengths, seed=0, dtype=np.uint16):
    """A block of instances of some lengths, at most 3 tokens of each masked; all else is drawn."""
    rng, masked = np.random.default_rng(seed), np.minimum(lengths, 3)
    offsets, masked_offsets = (np.cumsum([0, *each]).astype(np.int32) for each in (lengths, masked))
    positions = [np.sort(rng.choice(length, min(length, 3), False)) for length in lengths]
    return Block(
        input_ids=rng.integers(0, 2**16, offsets[-1]).astype(dtype),
        offsets=offsets,
        segment_a_length=rng.integers(0, np.array(lengths) + 1).astype(np.uint16),
        masked_lm_positions=np.concatenate(positions).astype(np.uint16),
        masked_lm_ids=rng.integers(0, 2**16, masked_offsets[-1]).astype(dtype),
        masked_offsets=masked_offsets,
        is_random_next=rng.integers(0, 2, len(lengths)).astype(bool),
        document_a=rng.integers(0, 2**63, len(lengths)).astype(np.uint64),
        document_b=rng.integers(0, 2**63, len(lengths)).astype(np.uint64),
    )


def plain(block):
    """Every instance alone, as plain values."""
    return [
        {name: column.tolist() for name, column in vars(block.slice(n, n + 1)).items()}
        for n in range(block.num_instances)
    ]


@given(
    st.lists(lengths, min_size=1, max_size=4), st.sampled_from([np.uint16, np.uint32]), st.data()
)
def test_rows_of_blocks_are_gathered_run_by_run(lengths, dtype, data):
    blocks = [block_of(each, number, dtype) for number, each in enumerate(lengths)]
    which = data.draw(st.lists(st.integers(0, len(blocks) - 1), min_size=1, max_size=9))
    rows = [st.integers(0, blocks[n].num_instances) for n in which]
    bounds = [data.draw(st.tuples(each, each).map(sorted)) for each in rows]
    found = gather_rows(blocks, *(np.array(each) for each in (which, *zip(*bounds, strict=True))))
    runs = zip(which, bounds, strict=True)
    expected = [row for n, (a, b) in runs for row in plain(blocks[n])[a:b]]
    assert plain(found) == [row | {"document_a": [], "document_b": []} for row in expected]
    assert (found.input_ids.dtype, found.masked_lm_ids.dtype) == (dtype, dtype)


@given(lengths, st.data())
def test_micro_batches_of_any_lengths_and_cuts(lengths, data):
    block = block_of(lengths)
    bounds = data.draw(st.lists(st.integers(0, len(lengths)), min_size=2, max_size=6).map(sorted))
    packed = pack_micro_batches(block, [*pairwise(bounds)])
    for batch, (first, last) in zip(packed, pairwise(bounds), strict=True):
        rows = plain(block)[first:last]
        starts = np.cumsum([0, *lengths[first:last]]).tolist()
        assert batch.cu_seqlens.tolist() == starts
        assert batch.max_seqlen == max(lengths[first:last], default=0)
        assert batch.input_ids.tolist() == [each for row in rows for each in row["input_ids"]]
        places = [n for length in lengths[first:last] for n in range(length)]
        assert batch.position_ids.tolist() == places
        types = [
            int(n >= row["segment_a_length"][0])
            for row in rows
            for n in range(len(row["input_ids"]))
        ]
        assert batch.token_type_ids.tolist() == types
        pairs = zip(starts, rows, strict=False)
        masked = [start + n for start, row in pairs for n in row["masked_lm_positions"]]
        assert batch.masked_positions.tolist() == masked
        assert batch.masked_labels.tolist() == [n for row in rows for n in row["masked_lm_ids"]]
        assert batch.is_random_next.tolist() == [row["is_random_next"][0] for row in rows]


def test_places_past_65535_tokens_begin_anew_with_each_instance():
    [batch] = pack_micro_batches(block_of([50_000] * 4), [(0, 4)])
    assert (batch.position_ids.reshape(4, -1).numpy() == np.arange(50_000)).all()
    with pytest.raises(AssertionError, match="are not one after another"):
        pack_micro_batches(block_of([2] * 4), [(0, 1), (2, 4)])
