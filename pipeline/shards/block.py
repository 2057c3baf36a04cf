"""Defines blocks: up to 65,536 // seq_len consecutive instances in one Arrow record batch.

The values and offsets of Arrow's list columns are the concatenated tokens and the cumulative
lengths that variable-length attention takes, so nothing is copied between file and model. Bytes
and columns are described in docs/format.md, section 2.

Shapes: N instances, T tokens, M masked positions.
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

from pipeline.shards.block_stream import BatchBuffers, read_stream, write_stream

try:
    from isal.isal_zlib import crc32  # 13 times as fast as zlib's
except ImportError:  # Beam workers have no isal: they write blocks, and seldom read any
    from zlib import crc32

TOKENS_PER_BLOCK = 65_536
"""The most tokens in a block, of any sequence length."""

_TOKEN_DTYPES = ("uint16", "uint32")

_NODES_BEFORE_DOCUMENTS = 8
"""Number of nodes before that of document_a: three columns of lists, and two of values."""
_DOCUMENT_BUFFERS = range(2 * _NODES_BEFORE_DOCUMENTS, 2 * _NODES_BEFORE_DOCUMENTS + 4)
"""Numbers of the buffers of document_a and document_b: two for each node."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Block:
    """Some consecutive instances of one shard, laid end to end in numpy arrays.

    An instance is `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` in a dataset of one segment
    (`pipeline.shards.instance_kind`). A block has N instances of T tokens in all, of which M are
    masked. Arrays of a block that was decoded are read-only.

    Example:
        The tokens of instance `n` before they were masked:

        ```python
        ids = block.input_ids[block.offsets[n] : block.offsets[n + 1]].copy()
        masked = slice(block.masked_offsets[n], block.masked_offsets[n + 1])
        ids[block.masked_lm_positions[masked]] = block.masked_lm_ids[masked]
        ```

    Attributes:
        input_ids: [T] uint16, or uint32 for vocabularies over 65,536. Token ids of all instances.
            They are masked already, and there is no padding.
        offsets: [N + 1] int32. Instance n is `input_ids[offsets[n]:offsets[n + 1]]`.
        segment_a_length: [N] uint16. Number of tokens of type 0 in each instance: [CLS] A [SEP].
            The tokens after them have type 1. If there is one segment, these are all tokens.
        masked_lm_positions: [M] uint16. Masked positions, counted from the [CLS] of their instance,
            and ascending in each instance.
        masked_lm_ids: [M], same dtype as input_ids. The original tokens at these positions.
        masked_offsets: [N + 1] int32. Instance n has the masked positions
            `masked_lm_positions[masked_offsets[n]:masked_offsets[n + 1]]`; masked_lm_ids likewise.
        is_random_next: [N] bool. True if B is from another document and does not follow A (BERT's
            next_sentence_label 1).
        document_a: [N] uint64. First 64 bits of the id of the document that A is from.
        document_b: [N] uint64. First 64 bits of the id of the document that B is from. If there is
            one segment, it equals document_a.
    """

    input_ids: Array
    offsets: Array
    segment_a_length: Array
    masked_lm_positions: Array
    masked_lm_ids: Array
    masked_offsets: Array
    is_random_next: Array
    document_a: Array
    document_b: Array

    @property
    def num_instances(self) -> int:
        """Number of instances, N."""
        return len(self.offsets) - 1

    @property
    def num_tokens(self) -> int:
        """Number of tokens, T; [CLS] and [SEP] are counted."""
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def num_masked(self) -> int:
        """Number of masked positions, M."""
        return int(self.masked_offsets[-1] - self.masked_offsets[0])

    @property
    def lengths(self) -> Array:
        """Number of tokens of each instance: [N] int32."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def masked_lengths(self) -> Array:
        """Number of masked positions of each instance: [N] int32."""
        return self.masked_offsets[1:] - self.masked_offsets[:-1]

    @property
    def masked_indices(self) -> npt.NDArray[np.int64]:
        """Indices of all masked positions in input_ids: [M]."""
        starts = np.repeat(self.offsets[:-1].astype(np.int64), self.masked_lengths)
        return starts + self.masked_lm_positions

    def slice(self, start: int, stop: int) -> "Block":
        """Returns instances start to stop - 1 as a block.

        Columns are views of this block's arrays; offsets are new arrays that begin with 0.
        """
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
    """Returns the number of instances in a full block, 512 at length 128.

    All blocks of a shard but the last are full.
    """
    return TOKENS_PER_BLOCK // seq_len


@lru_cache(maxsize=4)
def block_schema(token_dtype: Any) -> pa.Schema:
    """Returns the Arrow schema of a block (docs/format.md, section 2).

    Args:
        token_dtype: uint16, or uint32 for vocabularies over 65,536; whatever numpy takes as a
            dtype.
    """
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
    """Returns a block as one Arrow IPC stream, which is how a shard's tar holds it.

    Equal blocks give equal bytes within one version of Arrow.
    """
    return write_stream(to_record_batch(block))


def to_record_batch(block: Block) -> pa.RecordBatch:
    """Returns a block as an Arrow record batch with the columns of `block_schema`."""
    offsets = block.offsets - block.offsets[0]
    masked_offsets = block.masked_offsets - block.masked_offsets[0]
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
    """Returns the block that `encode_block` encoded; its arrays are read-only.

    Ids may still be outside of the vocabulary, and masked positions outside of their instances;
    `pipeline.shards.unpack.check_block` checks them. To read the blocks of a shard, use
    `read_blocks`, which fetches, checks and decodes them.

    Args:
        data: The bytes of one block, as the block table places them in the shard's tar.
        where: Shard and number of the block, for messages.

    Raises:
        ValueError: The bytes are not one record batch with the columns of a block, a column has
            nulls, or offsets do not fit the values. The message begins with `where`.

    Example:
        The first block of a shard on a local disk, without its block table:

        ```python
        import tarfile

        from pipeline import decode_block

        with tarfile.open("data/train/L128/pass-00/shard-00000.tar") as tar:
            data = tar.extractfile("000000.arrow").read()
        block = decode_block(data, "shard-00000.tar block 0")
        ```
    """
    try:
        return _parse_block(read_stream(data))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def decode_documents(data: bytes | memoryview, where: str) -> tuple[Array, Array]:
    """Returns the documents of a block's instances, without decompressing the other columns.

    Args:
        data: The bytes of one block.
        where: Shard and number of the block, for messages.

    Returns:
        document_a and document_b of `Block`, each [N] uint64.

    Raises:
        ValueError: The bytes are not one record batch with the columns of a block. The message
            begins with `where`.
    """
    try:
        batch = read_stream(data, wanted=_DOCUMENT_BUFFERS)
        _find_token_dtype(batch.schema)
        reader = _ColumnReader(batch)
        reader.skip_to_documents()
        document_a = reader.read_values("document_a", "uint64")
        return document_a, reader.read_values("document_b", "uint64")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _parse_block(batch: BatchBuffers) -> Block:
    """Returns the block in a record batch, after checking its columns.

    Raises:
        ValueError: The schema is not that of a block, a column has nulls or a wrong length, the
            columns of masked positions and of their tokens have different offsets, or a segment A
            is longer than its instance.
    """
    token_dtype = _find_token_dtype(batch.schema)
    reader = _ColumnReader(batch)

    # Columns are read in the order of the schema, which is the order of their buffers.
    offsets, input_ids = reader.read_lists("input_ids", token_dtype)
    segment_a_length = reader.read_values("segment_a_length", "uint16")
    masked_offsets, masked_lm_positions = reader.read_lists("masked_lm_positions", "uint16")
    label_offsets, masked_lm_ids = reader.read_lists("masked_lm_ids", token_dtype)
    have_equal_lengths = masked_offsets.tobytes() == label_offsets.tobytes()
    _expect(have_equal_lengths, "masked_lm_positions and masked_lm_ids differ in length")
    is_random_next = reader.read_bits("is_random_next")
    document_a = reader.read_values("document_a", "uint64")
    document_b = reader.read_values("document_b", "uint64")

    block = Block(
        input_ids=input_ids,
        offsets=offsets,
        segment_a_length=segment_a_length,
        masked_lm_positions=masked_lm_positions,
        masked_lm_ids=masked_lm_ids,
        masked_offsets=masked_offsets,
        is_random_next=is_random_next,
        document_a=document_a,
        document_b=document_b,
    )
    is_inside = bool((block.segment_a_length <= block.lengths).all())
    _expect(is_inside, "a segment_a_length reaches past its instance")
    return block


def _find_token_dtype(schema: pa.Schema) -> str:
    """Returns the dtype of a block's tokens, or refuses a schema that is not a block's.

    Raises:
        ValueError: The schema is not that of a block with uint16 or uint32 tokens.
    """
    for token_dtype in _TOKEN_DTYPES:
        if schema.equals(block_schema(token_dtype)):
            return token_dtype
    # Names of columns are left out: in a foreign file they may not be valid text.
    types = repr(schema.types)
    expected = block_schema("uint16")
    raise ValueError(f"damaged or foreign block: schema is\n{types}\nexpected\n{expected}")


class _ColumnReader:
    """Reads the columns of a record batch one after another, in the order of its schema.

    Every method checks the column that it reads, and raises ValueError if it does not fit.
    """

    def __init__(self, batch: BatchBuffers) -> None:
        """Starts with the first column of a batch."""
        is_complete = 2 * len(batch.nodes) == len(batch.buffers) == 20
        _expect(is_complete, "its batch lacks a column")
        self._num_rows = batch.num_rows
        self._nodes = iter(batch.nodes)
        self._buffers = iter(batch.buffers)

    def skip_to_documents(self) -> None:
        """Skips all columns before document_a. The next column that is read is document_a."""
        for _ in range(_NODES_BEFORE_DOCUMENTS):
            next(self._nodes)
            next(self._buffers)
            next(self._buffers)

    def read_values(self, name: str, dtype: str) -> Array:
        """Reads a column with one number per row: [N] of the dtype."""
        return self._read_flat(name, dtype, self._num_rows)

    def read_bits(self, name: str) -> Array:
        """Reads a column with one bit per row: [N] bool, read-only."""
        packed = self._read_flat(name, "uint8", -(-self._num_rows // 8))
        bits = np.unpackbits(packed, count=self._num_rows, bitorder="little").view(bool)
        bits.flags.writeable = False
        return bits

    def read_lists(self, name: str, dtype: str) -> tuple[Array, Array]:
        """Reads a column with one list per row.

        Returns:
            offsets: [N + 1] int32; list n is `values[offsets[n]:offsets[n + 1]]`.
            values: The values of all lists, of the dtype.
        """
        offsets = self._read_flat(name, "int32", self._num_rows + 1)
        num_values, buffer = self._take_node(name)
        is_ordered = bool((offsets[1:] >= offsets[:-1]).all())
        is_whole = offsets[0] == 0 and offsets[-1] == num_values
        fits = is_ordered and is_whole
        _expect(fits, f"offsets of {name} do not fit its {num_values} values")
        return offsets, np.frombuffer(buffer, dtype, num_values)

    def _read_flat(self, name: str, dtype: str, count: int) -> Array:
        """Reads the next column, or the offsets of the next column of lists, as an array.

        Args:
            name: The name of the column, for messages.
            dtype: The dtype of the array.
            count: The length of the array.
        """
        length, buffer = self._take_node(name)
        _expect(length == self._num_rows, f"{name} has {length} rows, not {self._num_rows}")
        return np.frombuffer(buffer, dtype, count)

    def _take_node(self, name: str) -> tuple[int, bytes]:
        """Takes the next node of the batch, after checking that it has no nulls.

        A column is one node. A column of lists is two: the offsets, and the items of all lists.

        Returns:
            The number of values that the node states, and the buffer of the values.
        """
        length, num_nulls = next(self._nodes)
        next(self._buffers)  # the bitmap of nulls
        values = next(self._buffers)
        _expect(num_nulls == 0, f"{name} holds nulls")
        return length, values


def concatenate_blocks(blocks: Sequence[Block]) -> Block:
    """Returns one block with the instances of several, in order; there must be at least one."""
    assert blocks, "nothing to concatenate"
    if len(blocks) == 1:
        return blocks[0]
    columns = {}
    for field in dataclasses.fields(Block):
        arrays = [getattr(block, field.name) for block in blocks]
        if "offsets" in field.name:
            columns[field.name] = _join_offsets(arrays)
        else:
            columns[field.name] = np.concatenate(arrays)
    return Block(**columns)


def block_digest(block: Block) -> bytes:
    """Returns blake2b-256 of a block's values, 32 bytes (docs/format.md, section 4).

    It does not depend on how the block is compressed.
    """
    digest = hashlib.blake2b(digest_size=32)
    token_bytes = block.input_ids.dtype.itemsize
    for values in (
        np.array([block.num_instances, block.num_tokens, block.num_masked, token_bytes], "<u8"),
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
    """Returns a shard's content hash: blake2b-256, in hex, of its blocks' digests in order."""
    return hashlib.blake2b(b"".join(block_digests), digest_size=32).hexdigest()


def count_block(block: Block, mask_id: int) -> Counter[str]:
    """Counts instances, tokens, masked positions and random pairs of a block.

    Masked positions that show [MASK], and those that show the original token, are counted apart.

    Returns:
        The counts by the names that they have in shards.parquet.
    """
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
    """Returns zlib's crc32 of a block's stored bytes, which the block table holds."""
    return crc32(data)


def _list_of(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type of lists whose items are of this type and never null."""
    return pa.list_(pa.field("item", kind, nullable=False))


def _lists(offsets: Array, values: Array) -> pa.ListArray:
    """Returns an Arrow column of lists: list n is `values[offsets[n]:offsets[n + 1]]`."""
    kind = _list_of(pa.from_numpy_dtype(values.dtype))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), type=kind)


def _join_offsets(offsets: Sequence[Array]) -> Array:
    """Returns the offsets of several blocks laid end to end: [N + 1] int32, from 0."""
    lengths = np.concatenate([np.diff(of_block) for of_block in offsets])
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])


def _expect(holds: bool, what: str) -> None:
    """Raises a ValueError that says what is wrong with the block, unless the condition holds."""
    if not holds:
        raise ValueError(f"damaged or foreign block: {what}")
