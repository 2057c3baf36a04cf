"""Gathering rows of blocks is slicing and joining them; unpacking refuses what points outside."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shards.block import Block, concatenate_blocks
from trainer.batches.rows import gather_rows
from trainer.batches.unpack import check_block


def assert_equal(found: Block, expected: Block) -> None:
    for field in dataclasses.fields(Block):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert one.dtype == other.dtype, field.name
        assert one.tolist() == other.tolist(), field.name


def widen(block: Block) -> Block:
    ids = {
        name: getattr(block, name).astype(np.uint32) + 70_000
        for name in ("input_ids", "masked_lm_ids")
    }
    return dataclasses.replace(block, **ids)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_gathering_is_slicing_and_joining(make_block: Callable[..., Block], data):
    change = data.draw(st.sampled_from([lambda block: block, widen]))
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    blocks = [change(make_block(size, first_id=100 * n)) for n, size in enumerate(sizes)]
    runs = []
    for chosen in data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=9)):
        start = data.draw(st.integers(0, sizes[chosen] - 1))
        runs.append((chosen, start, data.draw(st.integers(start + 1, sizes[chosen]))))
    found = gather_rows(blocks, *np.array(runs).T)
    assert_equal(
        found, concatenate_blocks([blocks[n].slice(start, stop) for n, start, stop in runs])
    )


def changed(block: Block, name: str, place: int, value: int) -> Block:
    values = getattr(block, name).copy()
    values[place] = value
    return dataclasses.replace(block, **{name: values})


VOCAB_SIZE = 70_200  # above every id that `widen` makes


def wrong_blocks(block: Block, vocab_size: int) -> list[tuple[Block, str]]:
    """Blocks that point outside, each with what the message says of it."""
    length, last = int(block.offsets[3] - block.offsets[2]), int(block.masked_offsets[3]) - 1
    cases = [("masked_lm_positions", last, value, f"instance 2: masked_lm_position {value} should be below {length};")
             for value in (length, 65_535)]  # fmt: skip
    for value in (vocab_size, np.iinfo(block.input_ids.dtype).max):
        said = f"{value} should be below {vocab_size};"
        cases += [
            ("input_ids", place, value, f"instance {n}: token id {said}")
            for place, n in ((0, 0), (-1, 7))
        ]
        cases += [
            ("masked_lm_ids", place, value, f"instance {n}: masked_lm_id {said}")
            for place, n in ((0, 0), (-1, 7))
        ]
    return [(changed(block, *case), said) for *case, said in cases]


@pytest.mark.parametrize("change", [lambda block: block, widen])
def test_what_points_outside_its_instance_or_the_vocabulary_is_refused(
    make_block: Callable[..., Block], change
):
    block = change(make_block(8))
    vocab_size = VOCAB_SIZE if change is widen else 100
    for wrong, said in wrong_blocks(block, vocab_size):
        with pytest.raises(ValueError, match=f"^there, block 5, {re.escape(said)}"):
            check_block(wrong, 8192, vocab_size, "there, block 5")
    inside = changed(block, "masked_lm_positions", 0, int(block.offsets[1]) - 1)
    inside = changed(
        changed(inside, "input_ids", -1, vocab_size - 1), "masked_lm_ids", -1, vocab_size - 1
    )
    check_block(inside, 8192, vocab_size, "there")
    longest = int(np.diff(block.offsets).max())
    with pytest.raises(ValueError, match=f"^there: an instance of {longest} tokens in a shard of"):
        check_block(block, longest - 1, vocab_size, "there")
