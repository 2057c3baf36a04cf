"""Unpacking refuses blocks that point outside."""

import dataclasses
import re

import numpy as np
import pytest

from pipeline.shards.unpack import check_block


def changed(block, name, place, value):
    values = getattr(block, name).copy()
    values[place] = value
    return dataclasses.replace(block, **{name: values})


def refuse(block, vocab_size, said):
    with pytest.raises(ValueError, match=f"^there, block 5, {re.escape(said)}"):
        check_block(block, 8192, vocab_size, "there, block 5")


@pytest.mark.parametrize(("wider", "vocab_size"), [(0, 100), (70_000, 70_200)])
def test_what_points_outside_its_instance_or_the_vocabulary_is_refused(
    make_block, wider, vocab_size
):
    block, names = make_block(8), {"input_ids": "token id", "masked_lm_ids": "masked_lm_id"}
    if wider:
        ids = {name: getattr(block, name).astype(np.uint32) + wider for name in names}
        block = dataclasses.replace(block, **ids)
    length, last = int(block.offsets[3] - block.offsets[2]), int(block.masked_offsets[3]) - 1
    for position in (length, 65_535):
        said = f"instance 2: masked_lm_position {position} should be below {length};"
        refuse(changed(block, "masked_lm_positions", last, position), vocab_size, said)
    for value in (vocab_size, np.iinfo(block.input_ids.dtype).max):
        for name, shown in names.items():
            for place, instance in ((0, 0), (-1, 7)):
                said = f"instance {instance}: {shown} {value} should be below {vocab_size};"
                refuse(changed(block, name, place, value), vocab_size, said)
    inside = changed(block, "masked_lm_positions", 0, int(block.offsets[1]) - 1)
    for name in names:
        inside = changed(inside, name, -1, vocab_size - 1)
    check_block(inside, 8192, vocab_size, "there")
    longest = int(np.diff(block.offsets).max())
    with pytest.raises(ValueError, match=f"^there: an instance of {longest} tokens in a shard of"):
        check_block(block, longest - 1, vocab_size, "there")
