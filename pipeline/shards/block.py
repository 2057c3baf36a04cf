"""A block: up to 65,536 // seq_len consecutive instances as one Arrow record batch.

Arrow's values and offsets are the concatenated tokens and cu_seqlens that variable-length attention
consumes. N instances, T tokens, M masked positions.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.shards.block_stream import Columns, read_stream, write_stream

try:
    from isal.isal_zlib import crc32  # 13 times as fast
except ImportError:  # a Beam worker, who writes and seldom reads
    from zlib import crc32

TOKENS_PER_BLOCK = 65_536
_KINDS = ("uint16", "uint32")

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Block:
    """Consecutive instances of one shard, concatenated."""

    input_ids: Array
    """[T] uint16 or uint32; already masked, no padding."""
    offsets: Array
    """[N+1] int32; instance n is input_ids[offsets[n]:offsets[n + 1]]."""
    segment_a_length: Array
    """[N] uint16; tokens of type 0, that is [CLS] A [SEP]."""
    masked_lm_positions: Array
    """[M] uint16; ascending inside each instance, counted from its [CLS]."""
    masked_lm_ids: Array
    """[M], dtype of input_ids; the tokens that stood there."""
    masked_offsets: Array
    """[N+1] int32 into the two arrays above."""
    is_random_next: Array
    """[N] bool; True where B is not what follows A (next_sentence_label 1)."""
    document_a: Array
    """[N] uint64; first 64 bits of the id of the document A is from."""
    document_b: Array
    """[N] uint64; the same for B."""

    @property
    def num_instances(self) -> int:
        """N."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """T, specials included."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def num_masked(self) -> int:
        """M."""
        return int(self.masked_offsets[-1] - self.masked_offsets[0])

    @property
    def lengths(self) -> Array:
        """[N] tokens of each instance."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def masked_lengths(self) -> Array:
        """[N] masked positions of each instance."""
        return self.masked_offsets[1:] - self.masked_offsets[:-1]

    @property
    def masked_indices(self) -> npt.NDArray[np.int64]:
        """[M] where the masked positions lie in input_ids."""
        starts = np.repeat(self.offsets[:-1].astype(np.int64), self.masked_lengths)
        return starts + self.masked_lm_positions

    def slice(self, start: int, stop: int) -> "Block":
        """Instances start to stop - 1: views of the columns, offsets counted from 0 again."""
        tokens = slice(int(self.offsets[start]), int(self.offsets[stop]))
        masked = slice(int(self.masked_offsets[start]), int(self.masked_offsets[stop]))
        return Block(
            input_ids=self.input_ids[tokens],
            offsets=self.offsets[start : stop + 1] - self.offsets[start],
            segment_a_length=self.segment_a_length[start:stop],
            masked_lm_positions=self.masked_lm_positions[masked],
            masked_lm_ids=self.masked_lm_ids[masked],
            masked_offsets=self.masked_offsets[start : stop + 1] - self.masked_offsets[start],
            is_random_next=self.is_random_next[start:stop],
            document_a=self.document_a[start:stop],
            document_b=self.document_b[start:stop],
        )


def block_instances(seq_len: int) -> int:
    """Instances in every block of a shard but the last: 512 at length 128, 128 at 512."""
    return TOKENS_PER_BLOCK // seq_len


@lru_cache(maxsize=4)
def block_schema(token_dtype: Any) -> pa.Schema:
    """The Arrow schema of a block whose tokens are uint16 or (vocabularies over 65,536) uint32."""
    token = pa.from_numpy_dtype(np.dtype(token_dtype))
    columns = {
        "input_ids": _list_of(token),
        "segment_a_length": pa.uint16(),
        "masked_lm_positions": _list_of(pa.uint16()),
        "masked_lm_ids": _list_of(token),
        "is_random_next": pa.bool_(),
        "document_a": pa.uint64(),
        "document_b": pa.uint64(),
    }
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


def encode_block(block: Block) -> bytes:
    """The block as one Arrow IPC stream; equal blocks, equal bytes within one version of Arrow."""
    return write_stream(to_record_batch(block))


def to_record_batch(block: Block) -> pa.RecordBatch:
    """The block's columns, by `block_schema`."""
    offsets, masked_offsets = (each - each[0] for each in (block.offsets, block.masked_offsets))
    columns = [
        _lists(offsets, block.input_ids),
        pa.array(block.segment_a_length),
        _lists(masked_offsets, block.masked_lm_positions),
        _lists(masked_offsets, block.masked_lm_ids),
        pa.array(block.is_random_next),
        pa.array(block.document_a),
        pa.array(block.document_b),
    ]
    schema = block_schema(block.input_ids.dtype.name)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def decode_block(data: bytes | memoryview, where: str) -> Block:
    """What encode_block encoded, with read-only arrays.

    Raises:
        ValueError: Not one record batch of the block schema, a null, or offsets that do not fit the
            values; the message begins with where.
    """
    try:
        return _block_of(read_stream(data))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _block_of(found: Columns) -> Block:
    kind = next((each for each in _KINDS if found.schema.equals(block_schema(each))), None)
    if kind is None:
        types = repr(found.schema.types)  # names may be no text
        expected = block_schema("uint16")
        raise ValueError(f"damaged or foreign block: schema is\n{types}\nexpected\n{expected}")
    _expect(2 * len(found.nodes) == len(found.buffers) == 20, "its batch lacks a column")
    nodes, buffers = iter(found.nodes), iter(found.buffers)

    def take(name: str) -> tuple[int, bytes]:
        (length, nulls), _, values = next(nodes), next(buffers), next(buffers)
        _expect(nulls == 0, f"{name} holds nulls")
        return length, values

    def flat(name: str, kind: str, per_byte: int = 1, more: int = 0) -> Array:
        length, values = take(name)
        _expect(length == found.num_rows, f"{name} has {length} rows, not {found.num_rows}")
        return np.frombuffer(values, kind, -(-length // per_byte) + more)

    def lists(name: str, kind: str) -> tuple[Array, Array]:
        offsets = flat(name, "int32", more=1)
        count, values = take(name)
        is_ordered = bool((offsets[1:] >= offsets[:-1]).all())
        is_whole = offsets[0] == 0 and offsets[-1] == count
        _expect(is_ordered and is_whole, f"offsets of {name} do not fit its {count} values")
        return offsets, np.frombuffer(values, kind, count)

    offsets, input_ids = lists("input_ids", kind)
    segment_a_length = flat("segment_a_length", "uint16")
    masked_offsets, masked_lm_positions = lists("masked_lm_positions", "uint16")
    label_offsets, masked_lm_ids = lists("masked_lm_ids", kind)
    same = masked_offsets.tobytes() == label_offsets.tobytes()
    _expect(same, "masked_lm_positions and masked_lm_ids differ in length")
    bits = flat("is_random_next", "uint8", per_byte=8)
    is_random_next = np.unpackbits(bits, count=found.num_rows, bitorder="little").view(bool)
    is_random_next.flags.writeable = False
    block = Block(
        input_ids=input_ids,
        offsets=offsets,
        segment_a_length=segment_a_length,
        masked_lm_positions=masked_lm_positions,
        masked_lm_ids=masked_lm_ids,
        masked_offsets=masked_offsets,
        is_random_next=is_random_next,
        document_a=flat("document_a", "uint64"),
        document_b=flat("document_b", "uint64"),
    )
    is_inside = bool((block.segment_a_length < block.lengths).all())
    _expect(is_inside, "a segment_a_length reaches past its instance")
    return block


def concatenate_blocks(blocks: Sequence[Block]) -> Block:
    """One block of all instances in order; at least one block."""
    assert blocks, "nothing to concatenate"
    if len(blocks) == 1:
        return blocks[0]
    joined = {}
    for name in (field.name for field in dataclasses.fields(Block)):
        parts = [getattr(block, name) for block in blocks]
        joined[name] = _join_offsets(parts) if "offsets" in name else np.concatenate(parts)
    return Block(**joined)


def block_digest(block: Block) -> bytes:
    """blake2b-256 of a block's values (docs/format.md, section 4), however they are compressed."""
    digest = hashlib.blake2b(digest_size=32)
    counts = block.num_instances, block.num_tokens, block.num_masked
    for values in (
        np.array([*counts, block.input_ids.dtype.itemsize], "<u8"),
        block.input_ids,
        block.lengths.astype("<u4"),
        block.segment_a_length,
        block.masked_lm_positions,
        block.masked_lm_ids,
        block.masked_lengths.astype("<u4"),
        block.is_random_next.astype(np.uint8),
        block.document_a,
        block.document_b,
    ):
        digest.update(np.ascontiguousarray(values).data)
    return digest.digest()


def content_hash(block_digests: Sequence[bytes]) -> str:
    """A shard's content hash: blake2b-256, in hex, of its blocks' digests in order."""
    return hashlib.blake2b(b"".join(block_digests), digest_size=32).hexdigest()


def count_block(block: Block, mask_id: int) -> Counter[str]:
    """The numbers that shards.parquet holds of a shard, of one block."""
    shown = block.input_ids[block.masked_indices]
    is_mask = shown == mask_id
    return Counter(
        instances=block.num_instances,
        tokens=block.num_tokens,
        masked=block.num_masked,
        random_next=int(np.count_nonzero(block.is_random_next)),
        masked_as_mask=int(np.count_nonzero(is_mask)),
        masked_kept=int(np.count_nonzero((shown == block.masked_lm_ids) & ~is_mask)),
    )


def checksum(data: bytes | memoryview) -> int:
    """The crc32 (zlib) that the block table holds of each block's stored bytes."""
    return crc32(data)


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


def _lists(offsets: Array, values: Array) -> pa.ListArray:
    kind = _list_of(pa.from_numpy_dtype(values.dtype))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), type=kind)


def _join_offsets(parts: Sequence[Array]) -> Array:
    lengths = np.concatenate([np.diff(part) for part in parts])
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"damaged or foreign block: {what}")
