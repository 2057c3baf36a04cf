"""A block's Arrow IPC stream: a schema and a record batch without nulls, compressed by zstd.

pyarrow writes it, and reads its messages. It would believe what a buffer says it becomes, takes a
stream without its end, and decompresses in 1.6 times the time: that is done here.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import zstandard

MAX_BUFFER_BYTES = 1 << 19
"""Of a column of a block: at most 65,536 tokens of 4 bytes, or as many offsets."""

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WRITING = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
_BATCH, _LENGTH, _NODES, _BUFFERS, _COMPRESSION, _CODEC = 2, 0, 1, 2, 3, 0  # fields of tables
_LZ4 = 0
_PAIR = struct.Struct("<qq")  # values and nulls of a node, first byte and bytes of a buffer
_length, _offset, _back, _entry = (struct.Struct(f"<{kind}").unpack_from for kind in "qIiH")


def write_stream(batch: pa.RecordBatch) -> bytes:
    """The stream of a batch; equal batches give equal bytes within one version of pyarrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


class Columns(NamedTuple):
    """What a stream holds of columns, each as long as it says.

    Attributes:
        schema: Of the columns.
        num_rows: Rows of the batch.
        nodes: Values and nulls of every column, that of a list before that of its items.
        buffers: Two a node, decompressed: which are null, and offsets or values.
    """

    schema: pa.Schema
    num_rows: int
    nodes: list[tuple[int, int]]
    buffers: list[bytes]


def read_stream(data: bytes | memoryview) -> Columns:
    """The columns of a stream, read to its very end; a ValueError says what it is else.

    That no offset in a message's metadata points outside of it, Arrow has made sure.
    """
    try:
        source = pa.BufferReader(data)
        message = pa.ipc.read_message(source)
        _expect(message.type == "schema", "it does not begin with a schema")
        schema = pa.ipc.read_schema(message)
        message = pa.ipc.read_message(source)
        is_batch = message.type == "record batch"
        _expect(is_batch, "another message than a record batch follows the schema")
        rest = bytes(memoryview(data)[source.tell() :])
        _expect(rest[:4] != _END[:4] or rest[:8] == _END, "more than one record batch")
        _expect(rest == _END, "its end is missing, or other bytes follow it")
        return _read_batch(schema, memoryview(message.metadata), memoryview(message.body or b""))
    except (pa.ArrowException, OSError, EOFError, struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"not an Arrow block: {error}") from error


def _read_batch(schema: pa.Schema, metadata: memoryview, body: memoryview) -> Columns:
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
    for start, size in _pairs(metadata, batch, _BUFFERS):
        _expect(0 <= start <= start + size <= len(body), "a buffer lies outside of its message")
        buffers.append(unpack(body[start : start + size]))
    return Columns(schema, num_rows, _pairs(metadata, batch, _NODES), buffers)


def _decompress(zstd: zstandard.ZstdDecompressor, stored: memoryview) -> bytes:
    """What a buffer holds, of which no more room is made than a block's columns need."""
    if not stored:
        return b""
    length, frame = _length(stored)[0], stored[8:]
    if length == -1:
        return bytes(frame)
    says = f"a buffer says it becomes {length} bytes"
    _expect(0 <= length <= MAX_BUFFER_BYTES, f"{says}, at most {MAX_BUFFER_BYTES} are in a block")
    found = zstandard.frame_content_size(frame)
    _expect(found in (length, -1), f"{says}, its frame says {found}")
    values = zstd.decompress(frame, length, allow_extra_data=False)
    _expect(len(values) == length, f"{says}, it becomes {len(values)}")
    return values


def _pairs(view: memoryview, table: int, number: int) -> list[tuple[int, int]]:
    """A vector of two numbers an item."""
    start = _follow(view, table, number)
    end = start + 4 + _PAIR.size * _offset(view, start)[0]
    return [*_PAIR.iter_unpack(view[start + 4 : end])]


def _field(view: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 where it is left out."""
    fields, entry = table - _back(view, table)[0], 4 + 2 * number
    offset: int = _entry(view, fields + entry)[0] if entry < _entry(view, fields)[0] else 0
    return table + offset if offset else 0


def _follow(view: memoryview, table: int, number: int) -> int:
    """Where the table or vector that a field points to begins."""
    position = _field(view, table, number)
    _expect(position > 0, f"field {number} of a message is missing")
    return position + int(_offset(view, position)[0])


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not an Arrow block: {what}")
