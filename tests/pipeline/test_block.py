"""The block codec: what goes in comes out, what is no block is refused, digests never change."""

import contextlib
import dataclasses
import hashlib
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shards.block import (
    Block,
    block_digest,
    checksum,
    concatenate_blocks,
    content_hash,
    count_block,
    decode_block,
    encode_block,
)
from pipeline.shards.shard_file import pack_member
from tests.datasets import TINY

EMPTY = TINY.slice(1, 1)
FIELDS = [field.name for field in dataclasses.fields(Block)]


def assert_equal(left: Block, right: Block) -> None:
    for name in FIELDS:
        assert getattr(left, name).dtype == getattr(right, name).dtype, name
        assert getattr(left, name).tolist() == getattr(right, name).tolist(), name


def batch_of(block: Block = TINY) -> pa.RecordBatch:
    with pa.ipc.open_stream(encode_block(block)) as reader:
        return reader.read_next_batch()


def stream_of(*batches: pa.RecordBatch, **options) -> bytes:
    sink, how = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, batches[0].schema, options=how) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def with_column(name: str, values: pa.Array) -> bytes:
    batch = batch_of()
    index = batch.schema.get_field_index(name)
    columns = [values if i == index else column for i, column in enumerate(batch.columns)]
    return stream_of(pa.RecordBatch.from_arrays(columns, schema=batch.schema))


@pytest.mark.parametrize(("shown", "as_mask", "kept"), [(4, 2, 0), (11, 1, 1), (9, 1, 0)])
def test_masked_positions_are_counted_by_what_they_show(shown, as_mask, kept):
    ids = TINY.input_ids.copy()
    ids[2] = shown  # where the text had 11; the other masked position shows [MASK], which is 4
    counts = {"instances": 2, "tokens": 11, "masked": 2, "random_next": 1}
    counts |= {"masked_as_mask": as_mask, "masked_kept": kept}
    assert count_block(dataclasses.replace(TINY, input_ids=ids), 4) == counts


def test_wide_token_ids_stay_wide():
    ids, labels = (each.astype(np.uint32) + 70_000 for each in (TINY.input_ids, TINY.masked_lm_ids))
    wide = dataclasses.replace(TINY, input_ids=ids, masked_lm_ids=labels)
    assert_equal(decode_block(encode_block(wide), "here"), wide)
    assert block_digest(wide) != block_digest(TINY)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.integers(0, 5), st.data())
def test_round_trip_slices_and_joins_of_random_blocks(make_block, num_instances, seed, data):
    block = decode_block(encode_block(made := make_block(num_instances, seed=seed)), "here")
    assert_equal(block, made)
    cut = data.draw(st.integers(0, num_instances))
    parts = [made.slice(0, cut), made.slice(cut, num_instances)]
    assert_equal(concatenate_blocks(parts), made)
    for part in parts:  # a slice is encoded as itself, without what lies around it
        again = decode_block(encode_block(part), "here")
        assert_equal(again, part)
        assert encode_block(again) == encode_block(part)
        assert block_digest(again) == block_digest(part)


def test_a_digest_by_hand():
    data = struct.pack(
        "<4Q 11H 2I 2H 2H 2H 2I 2B 2Q 2Q".replace(" ", ""),
        *(2, 11, 2, 2),  # instances, tokens, masked, bytes of an id
        *(2, 10, 4, 3, 12, 3, 2, 13, 3, 4, 3),
        *(6, 5, 4, 3, 2, 3, 11, 14, 1, 1, 0, 1),
        *(1, 2**64 - 2, 1, 7),
    )
    assert block_digest(TINY) == hashlib.blake2b(data, digest_size=32).digest()


def test_digests_never_change():
    expected = "da646125c7a06f1c58a3e35ed9ab670b9e2f2d4b8e3b52d3a8a1bba99a5708a3"
    assert content_hash([block_digest(TINY), block_digest(EMPTY)]) == expected
    assert checksum(b"123456789") == 0xCBF43926


def list_of(kind: pa.DataType, offsets: list, values: list) -> pa.Array:
    """A list column as damaged as one likes: nothing is checked here."""
    values = pa.array(values, kind)
    field = pa.list_(pa.field("item", kind, nullable=False))
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1]]
    return pa.Array.from_buffers(field, len(offsets) - 1, buffers, children=[values])


IDS = [2, 10, 4, 3, 12, 3, 2, 13, 3, 4, 3]


def with_list(name: str, *lists: list) -> bytes:
    return with_column(name, list_of(pa.uint16(), *lists))


NO_COLUMNS = pa.record_batch([], schema=pa.schema([]))
ENDED = "its end is missing, or other bytes follow it"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an Arrow block"),
        (b"PAR1" * 30, "not an Arrow block"),
        (encode_block(TINY)[:300], "not an Arrow block"),
        (encode_block(TINY)[:-9], "not an Arrow block"),
        (encode_block(TINY)[:-8], "its end is missing"),
        (encode_block(TINY) + b"\0", ENDED),
        (encode_block(TINY) * 2, ENDED),
        (stream_of(batch_of(), batch_of()), "more than one record batch"),
        (stream_of(batch_of().drop_columns(["document_b"])), "schema is"),
        (stream_of(NO_COLUMNS), "schema is"),
        (stream_of(batch_of().rename_columns(list("abcdefg"))), "schema is"),
        (with_column("is_random_next", pa.array([True, None])), "is_random_next holds nulls"),
        (with_column("document_a", pa.array([1, None], pa.uint64())), "document_a holds nulls"),
        (with_list("input_ids", [0, 6, 11], [None, *IDS[1:]]), "input_ids holds nulls"),
        (with_list("input_ids", [0, 12, 11], IDS), "offsets of input_ids do not fit its 11"),
        (with_list("masked_lm_ids", [0, 2, 2], [11, 14]), "masked_lm_ids differ in length"),
        (with_column("segment_a_length", pa.array([4, 6], pa.uint16())), "gth reaches past"),
    ],
)
def test_what_is_not_a_block_is_refused(data, message):
    with pytest.raises(ValueError, match=message) as caught:
        decode_block(data, "shard-00000.tar, block 3")
    assert str(caught.value).startswith("shard-00000.tar, block 3: ")


def buffer_lengths(data: bytes) -> list[int]:
    """Where the length before decompression stands in each buffer that is compressed."""
    marks = (at for at in range(8, len(data), 8) if data[at : at + 4] == b"\xff\xff\xff\xff")
    message = next(marks)
    body = message + 8 + struct.unpack_from("<I", data, message + 4)[0]
    places = range(body, len(data) - 16, 8)
    return [at for at in places if data[at + 8 : at + 12] == b"\x28\xb5\x2f\xfd"]


def with_number(data: bytes, at: int, number: int) -> bytes:
    return data[:at] + struct.pack("<q", number) + data[at + 8 :]


@pytest.mark.parametrize("length", [2**62, 2**40, 2**31, 2**19 + 1, -2, -(2**63)])
def test_a_buffer_that_says_it_becomes_huge_is_refused_unread(make_block, length):
    data = encode_block(make_block(400))
    said = rf"^here: not an Arrow block: a buffer says it becomes {length} bytes"
    for at in buffer_lengths(data)[:3]:
        with pytest.raises(ValueError, match=said):
            decode_block(with_number(data, at, length), "here")


@pytest.mark.parametrize("change", [-8, 8, 2**18])
def test_a_buffer_that_becomes_another_length_than_it_says_is_refused(make_block, change):
    data = encode_block(make_block(400))
    for at in buffer_lengths(data):
        length = struct.unpack_from("<q", data, at)[0] + change
        with pytest.raises(ValueError, match=r"^here: "):
            decode_block(with_number(data, at, length), "here")


def test_dictionaries_are_refused_before_they_are_read():
    batch = batch_of()
    encoded = batch.set_column(5, "document_a", batch["document_a"].dictionary_encode())
    said = "here: not an Arrow block: another message than a record batch follows"
    with pytest.raises(ValueError, match=said):
        decode_block(stream_of(encoded), "here")


def test_buffers_may_be_stored_plain_but_not_compressed_otherwise():
    for compression in ("zstd", None):
        assert_equal(decode_block(stream_of(batch_of(), compression=compression), "here"), TINY)
    with pytest.raises(ValueError, match="here: not an Arrow block: it is not compressed by zstd"):
        decode_block(stream_of(batch_of(), compression="lz4"), "here")


@pytest.mark.parametrize("value", [0, 1, 3, 2**15, 2**31 - 1, 2**40, 2**63 - 1, -1, -(2**63)])
def test_lengths_and_counts_that_lie_are_refused_or_change_nothing(value):
    """Every 64-bit number of the batch's description: rows, nulls, places of buffers."""
    data = encode_block(TINY)
    batch = data.index(b"\xff\xff\xff\xff", 4)
    end = batch + 8 + struct.unpack_from("<I", data, batch + 4)[0]
    for at in range(batch + 8, end, 8):
        try:
            block = decode_block(with_number(data, at, value), "here")
        except ValueError as error:
            assert str(error).startswith("here: ")  # noqa: PT017 - some of the numbers are padding
        else:
            assert_equal(block, TINY)


def test_a_block_is_read_as_arrow_reads_it(make_block):
    data = encode_block(make_block(40, seed=3))
    with pa.ipc.open_stream(data) as reader:
        expected = reader.read_next_batch()
    found = decode_block(data, "here")
    for name in ("input_ids", "masked_lm_positions", "masked_lm_ids"):
        offsets = found.offsets if name == "input_ids" else found.masked_offsets
        assert offsets.tolist() == expected[name].offsets.to_pylist()
        assert getattr(found, name).tolist() == expected[name].values.to_pylist()
    for name in ("segment_a_length", "is_random_next", "document_a", "document_b"):
        assert getattr(found, name).tolist() == expected[name].to_pylist()


@pytest.mark.parametrize("data", [encode_block(TINY), encode_block(EMPTY), stream_of(batch_of())])
def test_damage_is_a_value_error_or_other_values(data):
    """The crc32 finds damage; what gets past it must still be refused, or at least be a block."""
    draws = np.random.default_rng(0)
    for position in range(len(data)):
        for flips in (1 << draws.integers(8), 0xFF):
            damaged = data[:position] + bytes([data[position] ^ int(flips)]) + data[position + 1 :]
            with contextlib.suppress(ValueError):
                block = decode_block(damaged, "here")
                assert block.num_tokens == len(block.input_ids)
                labels, positions = block.masked_lm_ids, block.masked_lm_positions
                assert block.num_masked == len(labels) == len(positions)


NAMES = ("a", "000000.arrow", "a/b/c.txt", "x" * 100, "x" * 101, "größe.txt", "a b\t.cls")


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 4095])
@pytest.mark.parametrize("name", NAMES)
def test_a_member_of_a_tar_is_that_of_tarfile(name, num_bytes):
    member = tarfile.TarInfo(name)
    member.size = num_bytes
    data = b"x" * num_bytes
    expected = member.tobuf(tarfile.PAX_FORMAT) + data + bytes(-num_bytes % 512)
    assert pack_member(name, data) == expected
