"""A block's Arrow IPC stream: a schema and a record batch without nulls, compressed by zstd.

pyarrow writes and reads it. It believes what a buffer says it becomes, and takes a stream without
its end: both are looked at here first.
"""

import struct

import numpy as np
import pyarrow as pa

MAX_BUFFER_BYTES = 1 << 19
"""Of a column of a block: at most 65,536 tokens of 4 bytes, or as many offsets."""

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WRITING = pa.ipc.IpcWriteOptions(
    compression=pa.Codec("zstd", compression_level=1), use_threads=False
)
_READING = pa.ipc.IpcReadOptions(use_threads=False)
_BATCH, _BUFFERS, _COMPRESSION, _CODEC = 2, 2, 3, 0  # fields of the tables of a message
_LZ4 = 0


def write_stream(batch: pa.RecordBatch) -> bytes:
    """The stream of a batch; equal batches give equal bytes within one version of pyarrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_stream(data: bytes | memoryview) -> pa.RecordBatch:
    """The batch of a stream, read to its very end; a ValueError says what it is else.

    What its columns hold is not looked into.
    """
    try:
        source = pa.BufferReader(data)
        _expect(pa.ipc.read_message(source).type == "schema", "it does not begin with a schema")
        message = pa.ipc.read_message(source)
        is_batch = message.type == "record batch"
        _expect(is_batch, "another message than a record batch follows the schema")
        _check_end(bytes(memoryview(data)[source.tell() :]))
        _check_buffers(memoryview(message.metadata), memoryview(message.body or b""))
        # Of malloc, which the trainer tells to keep what was freed.
        options = {"options": _READING, "memory_pool": pa.system_memory_pool()}
        with pa.ipc.open_stream(pa.BufferReader(data), **options) as reader:
            batch = reader.read_next_batch()
        batch.validate()  # buffers as long as lengths say: else numpy would read outside of them
    except (pa.ArrowException, OSError, EOFError, MemoryError, struct.error) as error:
        raise ValueError(f"not an Arrow block: {error}") from error
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.values if pa.types.is_list(column.type) else column
        if column.null_count or values.null_count:
            raise ValueError(f"damaged or foreign block: {name} holds nulls")
    return batch


def _check_end(rest: bytes) -> None:
    if rest[:4] == _END[:4] and rest[:8] != _END:
        raise ValueError("damaged or foreign block: more than one record batch")
    if rest != _END:
        raise ValueError("damaged or foreign block: its end is missing, or other bytes follow it")


def _check_buffers(metadata: memoryview, body: memoryview) -> None:
    """Refuses buffers that say they become more than a block holds, before room is made."""
    batch = _follow(metadata, _number(metadata, "I", 0), _BATCH)
    if not _field(metadata, batch, _COMPRESSION):
        return
    compression = _follow(metadata, batch, _COMPRESSION)
    codec = _field(metadata, compression, _CODEC)
    is_zstd = codec and _number(metadata, "b", codec) != _LZ4
    _expect(bool(is_zstd), "it is not compressed by zstd")
    places = _follow(metadata, batch, _BUFFERS)
    count = 2 * _number(metadata, "I", places)
    numbers = np.frombuffer(metadata, "<i8", count, places + 4).tolist()
    for start, size in zip(numbers[::2], numbers[1::2], strict=True):
        if size:
            length, most = _number(body, "q", start), f"at most {MAX_BUFFER_BYTES} are in a block"
            is_possible = -1 <= length <= MAX_BUFFER_BYTES
            _expect(is_possible, f"a buffer says it becomes {length} bytes, {most}")


def _field(view: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 where it is left out."""
    offsets = table - _number(view, "i", table)
    entry = 4 + 2 * number
    is_there = entry < _number(view, "H", offsets)
    offset = _number(view, "H", offsets + entry) if is_there else 0
    return table + offset if offset else 0


def _follow(view: memoryview, table: int, number: int) -> int:
    """Where the table or vector that a field points to begins."""
    position = _field(view, table, number)
    _expect(position > 0, f"field {number} of a message is missing")
    return position + _number(view, "I", position)


def _number(view: memoryview, kind: str, position: int) -> int:
    _expect(position >= 0, "an offset points before its message")
    number: int = struct.unpack_from(f"<{kind}", view, position)[0]
    return number


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not an Arrow block: {what}")
