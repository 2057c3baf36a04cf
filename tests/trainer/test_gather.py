"""Gathering rows of blocks is slicing and joining them; unpacking refuses what points outside."""

import dataclasses
import re

import numpy as np
import pytest

from pipeline.shards.unpack import check_block


def widen(block):
    names = ("input_ids", "masked_lm_ids")
    ids = {name: getattr(block, name).astype(np.uint32) + 70_000 for name in names}
    return dataclasses.replace(block, **ids)


def changed(block, name, place, value):
    values = getattr(block, name).copy()
    values[place] = value
    return dataclasses.replace(block, **{name: values})


VOCAB_SIZE = 70_200  # above every id that `widen` makes


def wrong_blocks(block, vocab_size):
    """Blocks that point outside, each with what the message says of it."""
    length, last = int(block.offsets[3] - block.offsets[2]), int(block.masked_offsets[3]) - 1
    outside = "instance 2: masked_lm_position {} should be below {};"
    positions = (length, 65_535)
    cases = [("masked_lm_positions", last, n, outside.format(n, length)) for n in positions]
    for value in (vocab_size, np.iinfo(block.input_ids.dtype).max):
        said = f"{value} should be below {vocab_size};"
        for place, n in ((0, 0), (-1, 7)):
            cases.append(("input_ids", place, value, f"instance {n}: token id {said}"))
            cases.append(("masked_lm_ids", place, value, f"instance {n}: masked_lm_id {said}"))
    return [(changed(block, *case), said) for *case, said in cases]


@pytest.mark.parametrize("change", [lambda block: block, widen])
def test_what_points_outside_its_instance_or_the_vocabulary_is_refused(make_block, change):
    block = change(make_block(8))
    vocab_size = VOCAB_SIZE if change is widen else 100
    for wrong, said in wrong_blocks(block, vocab_size):
        with pytest.raises(ValueError, match=f"^there, block 5, {re.escape(said)}"):
            check_block(wrong, 8192, vocab_size, "there, block 5")
    inside = changed(block, "masked_lm_positions", 0, int(block.offsets[1]) - 1)
    for name in ("input_ids", "masked_lm_ids"):
        inside = changed(inside, name, -1, vocab_size - 1)
    check_block(inside, 8192, vocab_size, "there")
    longest = int(np.diff(block.offsets).max())
    with pytest.raises(ValueError, match=f"^there: an instance of {longest} tokens in a shard of"):
        check_block(block, longest - 1, vocab_size, "there")
