"""Gathering rows of blocks is slicing and joining them, whatever is put, freed and put again before."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shards.block import Block, concatenate_blocks
from trainer.stream.arena import Arena


def assert_equal(found: Block, expected: Block) -> None:
    for field in dataclasses.fields(Block):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert one.dtype == other.dtype, field.name
        assert one.tolist() == other.tolist(), field.name


def widen(block: Block) -> Block:
    ids = {name: getattr(block, name).astype(np.uint32) + 70_000 for name in ("input_ids", "masked_lm_ids")}
    return dataclasses.replace(block, **ids)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_gathering_is_slicing_and_joining(make_block: Callable[..., Block], data):
    change = data.draw(st.sampled_from([lambda block: block, widen]))
    arena, held = Arena(8), {}
    for number in range(data.draw(st.integers(1, 12))):
        if len(held) > 1 and data.draw(st.booleans()):
            slot = data.draw(st.sampled_from(sorted(held)))
            arena.free(slot)
            del held[slot]
        block = change(make_block(data.draw(st.integers(1, 8)), first_id=100 * number))
        slot = arena.put(block)
        assert slot not in held
        held[slot] = block
        runs = []
        for chosen in data.draw(st.lists(st.sampled_from(sorted(held)), min_size=1, max_size=6)):
            start = data.draw(st.integers(0, held[chosen].num_instances - 1))
            runs.append((chosen, start, data.draw(st.integers(start + 1, held[chosen].num_instances))))
        found = arena.gather(*np.array(runs).T)
        assert_equal(found, concatenate_blocks([held[chosen].slice(start, stop) for chosen, start, stop in runs]))


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
    arena, small, large = Arena(8), many_masked(50, 0), many_masked(65_536, 65_536)
    slots = [arena.put(block) for block in (small, large, small)]
    ones = np.ones(3, np.int64)
    assert_equal(arena.gather(np.array(slots), 0 * ones, ones), concatenate_blocks([small, large, small]))
    assert_equal(arena.gather(np.array(slots[:1]), 0 * ones[:1], ones[:1]), small)


def test_what_was_gathered_stays_when_its_slot_is_used_again(make_block: Callable[..., Block]):
    arena, first = Arena(8), make_block(8)
    slot = arena.put(first)
    gathered = arena.gather(np.array([slot]), np.array([0]), np.array([8]))
    arena.free(slot)
    assert arena.put(make_block(8, first_id=500)) == slot
    assert_equal(gathered, first)


def test_blocks_of_other_widths_do_not_mix(make_block: Callable[..., Block]):
    arena = Arena(8)
    arena.put(make_block(8))
    with pytest.raises(AssertionError, match="uint32 among blocks of uint16"):
        arena.put(widen(make_block(8)))
