"""Writes and reads the Arrow IPC stream of a block: a schema, and one zstd-compressed batch.

pyarrow writes the stream, and splits it into messages when it is read. The rest of the reading is
done here, because pyarrow trusts the size that a compressed buffer claims to have, accepts a stream
whose end is missing, and takes 1.6 times as long to decompress. docs/format.md, section 2 describes
the bytes.
"""

import struct
from collections.abc import Callable, Container
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import zstandard

MAX_BUFFER_BYTES = 1 << 19
"""The most bytes of a decompressed buffer: a block has at most 65,536 tokens of 4 bytes."""

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WRITING = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)

# Numbers of fields in the flatbuffer tables of Arrow's Message.fbs.
_BATCH = 2  # of Message
_LENGTH = 0  # of RecordBatch, as the next three
_NODES = 1
_BUFFERS = 2
_COMPRESSION = 3
_CODEC = 0  # of BodyCompression

_LZ4 = 0
_PAIR = struct.Struct("<qq")  # a node (values, nulls) or a buffer (first byte, number of bytes)

# Unpack one number of a flatbuffer, at an offset of its bytes.
_length = struct.Struct("<q").unpack_from
_offset = struct.Struct("<I").unpack_from
_back = struct.Struct("<i").unpack_from
_entry = struct.Struct("<H").unpack_from


def write_stream(batch: pa.RecordBatch) -> bytes:
    """Returns a batch as an Arrow IPC stream.

    Equal batches give equal bytes within one version of pyarrow.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class BatchBuffers(NamedTuple):
    """The decompressed buffers of a record batch, before they are read as columns.

    Attributes:
        schema: The schema of the columns.
        num_rows: Number of rows of the batch.
        nodes: (number of values, number of nulls) of each node. A column is one node. A column of
            lists is two nodes: the lists, and then the items of all lists.
        buffers: Two buffers for each node: first a bitmap of nulls, then the values. The values of
            a node of lists are the offsets of the lists.
    """

    schema: pa.Schema
    num_rows: int
    nodes: list[tuple[int, int]]
    buffers: list[bytes]


def read_stream(data: bytes | memoryview, wanted: Container[int] | None = None) -> BatchBuffers:
    """Reads the only record batch of a stream, and checks that nothing follows it.

    The offsets in a message's metadata are not checked here, because Arrow has checked that none of
    them points outside of the metadata.

    Args:
        data: The bytes of the stream.
        wanted: Numbers of the buffers to decompress; the others are returned empty. None
            decompresses all.

    Raises:
        ValueError: The bytes are not such a stream; the message says in what they differ.
    """
    try:
        source = pa.BufferReader(data)
        message = pa.ipc.read_message(source)
        _expect(message.type == "schema", "it does not begin with a schema")
        schema = pa.ipc.read_schema(message)
        message = pa.ipc.read_message(source)
        is_batch = message.type == "record batch"
        _expect(is_batch, "another message than a record batch follows the schema")
        tail = bytes(memoryview(data)[source.tell() :])
        _expect(tail[:4] != _END[:4] or tail[:8] == _END, "more than one record batch")
        _expect(tail == _END, "its end is missing, or other bytes follow it")
        metadata = memoryview(message.metadata)
        return _read_batch(schema, metadata, memoryview(message.body or b""), wanted)
    except (pa.ArrowException, OSError, EOFError, struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"not an Arrow block: {error}") from error


def _read_batch(
    schema: pa.Schema, metadata: memoryview, body: memoryview, wanted: Container[int] | None
) -> BatchBuffers:
    """Reads the record batch of a message.

    Args:
        schema: The schema of the stream.
        metadata: The message's flatbuffer, which says where nodes and buffers are.
        body: The message's body, which holds the buffers.
        wanted: As in `read_stream`.
    """
    batch = _follow(metadata, _offset(metadata, 0)[0], _BATCH)
    field = _field(metadata, batch, _LENGTH)
    num_rows = _length(metadata, field)[0] if field else 0
    _expect(0 <= num_rows <= MAX_BUFFER_BYTES, f"it says that it has {num_rows} rows")

    unpack: Callable[[memoryview], bytes] = bytes
    if _field(metadata, batch, _COMPRESSION):
        compression = _follow(metadata, batch, _COMPRESSION)
        codec = _field(metadata, compression, _CODEC)
        _expect(codec > 0 and metadata[codec] != _LZ4, "it is not compressed by zstd")
        unpack = partial(_decompress, zstandard.ZstdDecompressor())

    buffers = []
    for number, (start, size) in enumerate(_pairs(metadata, batch, _BUFFERS)):
        _expect(0 <= start <= start + size <= len(body), "a buffer lies outside of its message")
        is_wanted = wanted is None or number in wanted
        buffers.append(unpack(body[start : start + size]) if is_wanted else b"")
    return BatchBuffers(schema, num_rows, _pairs(metadata, batch, _NODES), buffers)


def _decompress(zstd: zstandard.ZstdDecompressor, stored: memoryview) -> bytes:
    """Decompresses a buffer, never to more than MAX_BUFFER_BYTES.

    Args:
        zstd: The decompressor.
        stored: The buffer: its decompressed length as int64, then a zstd frame. Length -1 means
            that the bytes follow as they are.
    """
    if not stored:
        return b""
    length = _length(stored)[0]
    frame = stored[8:]
    if length == -1:
        return bytes(frame)

    says = f"a buffer says it becomes {length} bytes"
    _expect(0 <= length <= MAX_BUFFER_BYTES, f"{says}, at most {MAX_BUFFER_BYTES} are in a block")
    frame_length = zstandard.frame_content_size(frame)  # -1 if the frame does not say it
    _expect(frame_length in (length, -1), f"{says}, its frame says {frame_length}")
    values = zstd.decompress(frame, length, allow_extra_data=False)
    _expect(len(values) == length, f"{says}, it becomes {len(values)}")
    return values


def _pairs(view: memoryview, table: int, number: int) -> list[tuple[int, int]]:
    """Returns the items of a field that is a vector of pairs of int64.

    The arguments are those of `_field`.

    Raises:
        ValueError: The field is left out.
    """
    start = _follow(view, table, number)
    end = start + 4 + _PAIR.size * _offset(view, start)[0]
    return [*_PAIR.iter_unpack(view[start + 4 : end])]


def _field(view: memoryview, table: int, number: int) -> int:
    """Returns the position of a field in a flatbuffer, or 0 if the field is left out.

    A flatbuffer consists of tables, which have numbered fields. Positions are in bytes from its
    beginning.

    Args:
        view: The flatbuffer.
        table: The position of the table that has the field.
        number: The number of the field in the table, from 0.
    """
    fields = table - _back(view, table)[0]
    entry = 4 + 2 * number
    if entry >= _entry(view, fields)[0]:
        return 0
    offset: int = _entry(view, fields + entry)[0]
    return table + offset if offset else 0


def _follow(view: memoryview, table: int, number: int) -> int:
    """Returns the position of the table or vector that a field points to.

    The arguments are those of `_field`.

    Raises:
        ValueError: The field is left out.
    """
    position = _field(view, table, number)
    _expect(position > 0, f"field {number} of a message is missing")
    return position + int(_offset(view, position)[0])


def _expect(holds: bool, what: str) -> None:
    """Raises a ValueError that says what is wrong with the stream, unless the condition holds."""
    if not holds:
        raise ValueError(f"not an Arrow block: {what}")
