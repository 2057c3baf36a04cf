"""A block's Arrow IPC stream: a schema and a record batch without nulls, compressed by zstd.

pyarrow writes and reads it. It believes what a buffer says it becomes, and takes a stream without
its end: both are looked at here first.
"""

import struct

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
_PLACE = struct.Struct("<qq")  # of a buffer in a message's body: its first byte, and how many
_length, _offset, _back, _entry = (struct.Struct(f"<{kind}").unpack_from for kind in "qIiH")


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
        with pa.ipc.open_stream(pa.BufferReader(data), options=_READING) as reader:
            batch = reader.read_next_batch()
        batch.validate()  # buffers as long as lengths say: else numpy would read outside of them
    except (pa.ArrowException, OSError, EOFError, MemoryError, struct.error) as error:
        raise ValueError(f"not an Arrow block: {error}") from error
    return batch


def _check_end(rest: bytes) -> None:
    if rest[:4] == _END[:4] and rest[:8] != _END:
        raise ValueError("damaged or foreign block: more than one record batch")
    if rest != _END:
        raise ValueError("damaged or foreign block: its end is missing, or other bytes follow it")


def _check_buffers(metadata: memoryview, body: memoryview) -> None:
    """Refuses buffers that say they become more than a block holds, before room is made.

    That no offset of the metadata points outside of it, Arrow has made sure.
    """
    batch = _follow(metadata, _offset(metadata, 0)[0], _BATCH)
    if not _field(metadata, batch, _COMPRESSION):
        return
    compression = _follow(metadata, batch, _COMPRESSION)
    codec = _field(metadata, compression, _CODEC)
    _expect(codec > 0 and metadata[codec] != _LZ4, "it is not compressed by zstd")
    places = _follow(metadata, batch, _BUFFERS)
    end = places + 4 + _PLACE.size * _offset(metadata, places)[0]
    for start, size in _PLACE.iter_unpack(metadata[places + 4 : end]):
        _expect(start >= 0, "a buffer begins before its message")
        if size and not -1 <= (length := _length(body, start)[0]) <= MAX_BUFFER_BYTES:
            most = f"at most {MAX_BUFFER_BYTES} are in a block"
            raise ValueError(f"not an Arrow block: a buffer says it becomes {length} bytes, {most}")


def _field(view: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 where it is left out."""
    fields, entry = table - _back(view, table)[0], 4 + 2 * number
    offset: int = _entry(view, fields + entry)[0] if entry < _entry(view, fields)[0] else 0
    return table + offset if offset else 0


def _follow(view: memoryview, table: int, number: int) -> int:
    """Where the table or vector that a field points to begins."""
    position = _field(view, table, number)
    _expect(position > 0, f"field {number} of a message is missing")
    target: int = position + _offset(view, position)[0]
    return target


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"not an Arrow block: {what}")
