"""Gathering rows of blocks is slicing and joining them, whatever is put, freed and put again before."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shards.block import Block, concatenate_blocks
from trainer.batches.arena import Arena, check_block


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
    rows, held = Arena(8), {}
    for number in range(data.draw(st.integers(1, 12))):
        if len(held) > 1 and data.draw(st.booleans()):
            slot = data.draw(st.sampled_from(sorted(held)))
            rows.free(slot)
            del held[slot]
        block = change(make_block(data.draw(st.integers(1, 8)), first_id=100 * number))
        slot = rows.put(block)
        assert slot not in held
        held[slot] = block
        runs = []
        for chosen in data.draw(st.lists(st.sampled_from(sorted(held)), min_size=1, max_size=6)):
            start = data.draw(st.integers(0, held[chosen].num_instances - 1))
            runs.append(
                (chosen, start, data.draw(st.integers(start + 1, held[chosen].num_instances)))
            )
        found = rows.gather(*np.array(runs).T)
        assert_equal(
            found,
            concatenate_blocks([held[chosen].slice(start, stop) for chosen, start, stop in runs]),
        )


def many_masked(num_tokens: int, num_masked: int) -> Block:
    return Block(
        input_ids=np.arange(num_tokens).astype(np.uint16),
        offsets=np.array([0, num_tokens], np.int32),
        segment_a_length=np.array([5], np.uint16),
        masked_lm_positions=np.arange(num_masked).astype(np.uint16),
        masked_lm_ids=np.arange(num_masked).astype(np.uint16)[::-1].copy(),
        masked_offsets=np.array([0, num_masked], np.int32),
        is_random_next=np.array([True]),
        document_a=np.array([num_tokens], np.uint64),
        document_b=np.array([2**64 - 1], np.uint64),
    )


def test_a_block_with_every_token_masked_makes_room_and_moves_nothing():
    rows, small, large = Arena(8), many_masked(50, 0), many_masked(65_536, 65_536)
    slots = [rows.put(block) for block in (small, large, small)]
    ones = np.ones(3, np.int64)
    assert_equal(
        rows.gather(np.array(slots), 0 * ones, ones), concatenate_blocks([small, large, small])
    )
    assert_equal(rows.gather(np.array(slots[:1]), 0 * ones[:1], ones[:1]), small)


def test_what_was_gathered_stays_when_its_slot_is_used_again(make_block: Callable[..., Block]):
    rows, first = Arena(8), make_block(8)
    slot = rows.put(first)
    gathered = rows.gather(np.array([slot]), np.array([0]), np.array([8]))
    rows.free(slot)
    assert rows.put(make_block(8, first_id=500)) == slot
    assert_equal(gathered, first)


@pytest.mark.parametrize("num_blocks", [1, 4])  # with a free slot, and where the arena has to grow
def test_blocks_of_other_widths_do_not_mix(make_block: Callable[..., Block], num_blocks):
    rows, blocks = Arena(8), [make_block(8, first_id=100 * n) for n in range(num_blocks)]
    slots = [rows.put(block) for block in blocks]
    with pytest.raises(ValueError, match=r"^here: tokens of uint32 among blocks of uint16"):
        rows.put(widen(make_block(8)), "here")
    slots.append(rows.put(blocks[0]))
    found = rows.gather(np.array(slots), np.zeros(len(slots), int), np.full(len(slots), 8))
    assert_equal(found, concatenate_blocks([*blocks, blocks[0]]))


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
