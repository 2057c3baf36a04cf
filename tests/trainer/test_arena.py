"""Gathering rows of blocks is slicing and joining them, whatever is put, freed and put again before."""

import dataclasses
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shards.arrow_stream import RecordBatch, find_messages, read_record_batch
from pipeline.shards.arrow_writer import write_record_batch
from pipeline.shards.block import Block, concatenate_blocks, decode_block, encode_block
from pipeline.shards.records import Shard
from pipeline.shards.seal import NOTHING
from trainer.stream import arena
from trainer.stream.arena import Arena, check_block

needs_zstd = pytest.mark.skipif(not arena.IS_USABLE, reason="not compiled, or no zstd library")


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


def grown(block: Block) -> Arena:
    """An arena that has room for blocks like this one."""
    found = Arena(8)
    found.free(found.put(block))
    return found


def stored_in(
    rows: Arena, block: Block, data: bytes, seq_len: int = 8192, vocab_size: int = 2**32
) -> int | None:
    return one_stored(rows, data, (block.num_instances, block.num_tokens), seq_len, vocab_size)


def one_stored(
    rows: Arena, data: bytes, counts: tuple[int, int], seq_len: int = 8192, vocab_size: int = 2**16
):
    slots = rows.put_stored([memoryview(data)], np.array([counts]), seq_len, vocab_size)
    return slots[0] if slots else None


@needs_zstd
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_compiled_path_holds_what_the_other_does(make_block: Callable[..., Block], data):
    change = data.draw(st.sampled_from([lambda block: block, widen]))
    found, blocks = grown(change(make_block(8))), []
    for number in range(data.draw(st.integers(1, 3))):
        block = change(make_block(data.draw(st.integers(1, 8)), first_id=100 * number))
        encoded = encode_block(block)
        slot = stored_in(found, block, encoded)
        assert slot is not None
        blocks.append(
            (slot, block, found.put(decode_block(encoded, "here")) if number < 1 else slot)
        )
    for slot, block, other in blocks:
        run = (np.array([0]), np.array([block.num_instances]))
        assert_equal(found.gather(np.array([slot]), *run), block)
        assert_equal(found.gather(np.array([other]), *run), block)


def spoiled(
    batch: RecordBatch, number: int, change: Callable[[np.ndarray], object], dtype=np.int32
) -> RecordBatch:
    values = np.frombuffer(batch.buffers[number], dtype).copy()
    change(values)
    buffers = [
        values.tobytes() if n == number else buffer for n, buffer in enumerate(batch.buffers)
    ]
    return dataclasses.replace(batch, buffers=buffers)


@needs_zstd
def test_the_compiled_path_leaves_what_is_wrong_to_the_other(make_block: Callable[..., Block]):
    block = make_block(8)
    encoded = encode_block(block)
    found, batch = grown(block), read_record_batch(encoded)

    def swap(values: np.ndarray) -> None:
        values[[1, 2]] = values[[2, 1]]

    assert stored_in(found, block, encoded, int(np.diff(block.offsets).max()) - 1) is None
    assert one_stored(found, encoded, (block.num_instances - 1, block.num_tokens)) is None
    assert one_stored(found, encoded, (block.num_instances, block.num_tokens + 1)) is None
    wrong = [
        spoiled(batch, 0, swap),
        spoiled(batch, 0, lambda values: values.__setitem__(0, 1)),
        spoiled(batch, 0, lambda values: values.__setitem__(8, values[8] + 1)),
        spoiled(batch, 2, lambda values: values.__setitem__(3, 60_000), np.uint16),
        spoiled(batch, 3, swap),
        spoiled(batch, 5, swap),
        dataclasses.replace(
            batch, buffers=[b"" if n == 8 else each for n, each in enumerate(batch.buffers)]
        ),
        dataclasses.replace(batch, lengths=[9, *batch.lengths[1:]]),
        dataclasses.replace(batch, lengths=[*batch.lengths[:-1], 7]),
    ]
    for each in wrong:
        stored = write_record_batch(each.schema, each.lengths, each.buffers)
        assert stored_in(found, block, stored) is None
        with pytest.raises(ValueError, match="here: "):
            decode_block(stored, "here")
    assert stored_in(found, block, encoded) is not None


def changed(block: Block, name: str, place: int, value: int) -> Block:
    values = getattr(block, name).copy()
    values[place] = value
    return dataclasses.replace(block, **{name: values})


VOCAB_SIZE = 70_200  # above every id that `widen` makes
SHARD = Shard("train", 8192, 0, "here", 0, "", "", "", 0, 0, 0, 0, 0, 0, NOTHING)


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
def test_both_paths_refuse_what_points_outside_its_instance_or_the_vocabulary(
    make_block: Callable[..., Block], change
):
    block = change(make_block(8))
    vocab_size = VOCAB_SIZE if change is widen else 100
    found = grown(block)
    for wrong, said in wrong_blocks(block, vocab_size):
        stored = encode_block(wrong)
        assert stored_in(found, wrong, stored, vocab_size=vocab_size) is None
        with pytest.raises(ValueError, match=f"^there, block 5, {re.escape(said)}"):
            check_block(read_record_batch(stored), SHARD, vocab_size, "there, block 5")
    inside = changed(block, "masked_lm_positions", 0, int(block.offsets[1]) - 1)
    inside = changed(
        changed(inside, "input_ids", -1, vocab_size - 1), "masked_lm_ids", -1, vocab_size - 1
    )
    assert_equal(
        check_block(read_record_batch(encode_block(inside)), SHARD, vocab_size, "there"), inside
    )
    if arena.IS_USABLE:
        slot = stored_in(found, inside, encode_block(inside), vocab_size=vocab_size)
        assert slot is not None
        assert_equal(found.gather(np.array([slot]), np.array([0]), np.array([8])), inside)


@needs_zstd
def test_the_compiled_path_takes_no_bytes_that_the_other_refuses(make_block: Callable[..., Block]):
    block = make_block(8)
    encoded, found = encode_block(block), grown(block)
    at = find_messages(encoded)
    places = struct.unpack_from("<40q", encoded, at.places)
    frames = [
        at.body + start + 8 + n
        for start, size in zip(places[2::4], places[3::4], strict=True)
        for n in range(size - 8)
    ]
    taken = 0
    for place in sorted({*range(len(encoded))} - {*frames}):  # in those a flip is crc32's to notice
        for bit in range(8):
            changed = bytearray(encoded)
            changed[place] ^= 1 << bit
            if (slot := stored_in(found, block, bytes(changed))) is not None:
                taken += 1
                decoded = decode_block(bytes(changed), "here")
                assert_equal(found.gather(np.array([slot]), np.array([0]), np.array([8])), decoded)
                found.free(slot)
    assert (
        taken < 2000
    )  # the padding between buffers, and places of validity, which there is none of
    for number, start in enumerate(places[2::4]):  # what the buffer says it becomes
        for length in (
            -(2**63),
            -(2**40),
            -600_000,
            -5000,
            -2,
            0,
            3,
            5000,
            600_000,
            2**40,
            2**63 - 1,
        ):
            changed = bytearray(encoded)
            struct.pack_into("<q", changed, at.body + start, length)
            assert stored_in(found, block, bytes(changed)) is None, number
    for frame in frames:
        changed = bytearray(encoded)
        changed[frame] ^= 255
        if (slot := stored_in(found, block, bytes(changed))) is not None:
            found.free(slot)
    for size in range(len(encoded)):
        assert stored_in(found, block, encoded[:size]) is None
    for more in (encoded + bytes(1), encoded + encoded):
        assert stored_in(found, block, more) is None


def with_frame(data: bytes, number: int, frame: bytes, length: int) -> bytes:
    """A stored block with another frame for one of its buffers, put behind the others."""
    at, changed = find_messages(data), bytearray(data[:-8])
    stored = struct.pack("<q", length) + frame
    struct.pack_into(
        "<2q", changed, at.places + 32 * number + 16, len(changed) - at.body, len(stored)
    )
    changed += stored + bytes(-len(stored) % 8)
    struct.pack_into("<q", changed, at.body_bytes, len(changed) - at.body)
    return bytes(changed) + data[-8:]


@needs_zstd
def test_the_compiled_path_asks_zstd_about_frames_of_its_own_format_alone(
    make_block: Callable[..., Block],
):
    block = make_block(8)
    encoded, found, values = encode_block(block), grown(block), block.document_a.tobytes()
    raw = struct.pack("<IBI", 0xFD2FB528, 0xA0, 64) + (64 << 3 | 1).to_bytes(3, "little") + values
    zstd_7 = (
        struct.pack("<IBI", 0xFD2FB527, 0xA0, 64)
        + (1 << 22 | 64).to_bytes(3)
        + values
        + b"\xc0\0\0"
    )
    slot = stored_in(found, block, with_frame(encoded, 8, raw, 64))
    assert slot is not None
    assert_equal(found.gather(np.array([slot]), np.array([0]), np.array([8])), block)
    found.free(slot)
    skippable = struct.pack("<II", 0x184D2A50, 64) + values
    for frame, length in (
        (zstd_7, 64),
        (skippable, 0),
        (skippable, 64),
        (raw[:3], 64),
        (b"", 64),
        (b"", 0),
    ):
        stored = with_frame(encoded, 8, frame, length)
        assert stored_in(found, block, stored) is None
        with pytest.raises(ValueError, match="here: "):
            decode_block(stored, "here")


@needs_zstd
def test_the_compiled_path_takes_no_bytes_behind_a_frame(make_block: Callable[..., Block]):
    """zstd's own call goes on to frames behind the first: those that hold nothing change no value and no length."""
    block = make_block(8)
    encoded, found, values = encode_block(block), grown(block), block.document_a.tobytes()
    raw = struct.pack("<IBI", 0xFD2FB528, 0xA0, 64) + (64 << 3 | 1).to_bytes(3, "little") + values
    empty = struct.pack("<IBB", 0xFD2FB528, 0x20, 0) + (1).to_bytes(3, "little")
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    assert zstandard.ZstdDecompressor().decompress(empty) == b""
    for behind in (empty, skippable, skippable + empty, b"\0", bytes(8), raw):
        stored = with_frame(encoded, 8, raw + behind, 64)
        assert stored_in(found, block, stored) is None
        with pytest.raises(ValueError, match="here: "):
            decode_block(stored, "here")


@needs_zstd
def test_the_compiled_path_takes_no_frame_that_does_not_say_how_long_it_becomes(
    make_block: Callable[..., Block],
):
    block = make_block(8)
    encoded, found, values = encode_block(block), grown(block), block.document_a.tobytes()
    unsaid = struct.pack("<IBB", 0xFD2FB528, 0, 0) + (64 << 3 | 1).to_bytes(3, "little") + values
    assert zstandard.ZstdDecompressor().decompress(unsaid, max_output_size=64) == values
    stored = with_frame(encoded, 8, unsaid, 64)
    assert stored_in(found, block, stored) is None
    with pytest.raises(ValueError, match="here: "):
        decode_block(stored, "here")


@pytest.fixture
def put_stored(make_block: Callable[..., Block]) -> tuple[Callable[..., int], dict[str, Any]]:
    """The compiled call, and what it would be given for one block."""
    block = make_block(8)
    found, encoded = grown(block), encode_block(block)
    assert stored_in(found, block, encoded) is not None
    template, places, lists, flat = found._targets
    given = {
        "blocks": [encoded],
        "template": template,
        "places": places,
        "sizes": (4, 2, 8192, 2**16, 9),
    }
    given |= {"counts": np.array([[found._free[-1], block.num_instances, block.num_tokens]])}
    given |= {"lists": lists, "flat": flat}
    return lambda **changes: arena.COMPILED.put_stored(*(given | changes).values()), given


@needs_zstd
def test_the_compiled_path_takes_no_places_past_its_messages(put_stored):
    put, given = put_stored
    assert put() == 1
    places, size = given["places"], len(given["template"])
    for number in range(4):
        for place in (-1, size - 7, size, 2**63 - 8, 2**63 - 1):
            assert put(places=(*places[:number], place, *places[number + 1 :])) == 0


@needs_zstd
def test_blocks_are_put_up_to_the_first_that_is_wrong_or_has_no_room(
    make_block: Callable[..., Block],
):
    blocks = [make_block(8, first_id=100 * n) for n in range(5)]
    bodies = [memoryview(encode_block(block)) for block in blocks]
    counts = [(each.num_instances, each.num_tokens) for each in blocks]
    found = grown(blocks[0])  # has four slots
    put = found.put_stored(bodies, np.array(counts), 8192, 2**16)
    assert len(put) == 4
    assert found.put_stored(bodies[4:], np.array(counts[4:]), 8192, 2**16) == []
    run = np.zeros(4, int), np.full(4, 8)
    assert_equal(found.gather(np.array(put), *run), concatenate_blocks(blocks[:4]))
    for slot in put:
        found.free(slot)
    counts[2] = (8, 1)
    put = found.put_stored(bodies[:4], np.array(counts[:4]), 8192, 2**16)
    assert len(put) == 2
    assert_equal(
        found.gather(np.array(put), *(each[:2] for each in run)), concatenate_blocks(blocks[:2])
    )
    rest = [found.put(block) for block in blocks[2:4]]
    assert len({*put, *rest}) == 4
    assert found.put_stored([], np.zeros((0, 2), int), 8192, 2**16) == []


@needs_zstd
def test_the_compiled_path_refuses_arrays_that_do_not_fit(put_stored):
    put, given = put_stored
    counts = given["counts"]
    for wrong in (counts[:0], counts[:, :2].copy(), np.concatenate([counts, counts])):
        with pytest.raises(ValueError, match="three numbers of 8 bytes for each block"):
            put(counts=wrong)
    for blocks in ([*given["blocks"], 5], [None]):
        with pytest.raises(TypeError, match="bytes-like"):
            put(blocks=blocks)
    with pytest.raises(ValueError, match="expected a tuple of 6 arrays"):
        put(lists=given["lists"][:5])


def test_without_room_or_compiled_module_the_other_path_is_taken(
    make_block: Callable[..., Block], monkeypatch
):
    block = make_block(8)
    assert stored_in(Arena(8), block, encode_block(block)) is None
    monkeypatch.setattr(arena, "IS_USABLE", False)
    assert stored_in(grown(block), block, encode_block(block)) is None
