"""The buffers of a block's Arrow IPC stream, decompressed: docs/format.md, section 2, read to the letter.

May import the stdlib, pyarrow and zstandard. pyarrow's own reader takes 1.7 times the CPU: it makes a decompression
context for every buffer. Here one serves a thread for good. Nothing is believed that the bytes do not show.
"""

import struct
import threading
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import zstandard

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_ZSTD = 1
# A column's buffers by its type: validity first, which is empty where nothing may be null.
_LIST_BUFFERS, _FLAT_BUFFERS = 4, 2
# A block holds at most 65,536 tokens, so no column of it is longer than as many ids of 4 bytes and their offsets.
MAX_BUFFER_BYTES = 1 << 19


@dataclass(frozen=True)
class RecordBatch:
    """One record batch without nulls.

    Attributes:
        schema: Its schema. One version of Arrow always gives the same object.
        lengths: Values of every column, and after each list column those of all its lists together.
        buffers: The buffers of every column without validity: offsets and values of a list, else values.
    """

    schema: pa.Schema
    lengths: list[int]
    buffers: list[bytes]


@dataclass(frozen=True)
class MessagePlaces:
    """Where a stream of one record batch has, as int64, what differs between batches of one schema.

    Attributes:
        body: First byte of the batch's buffers; all before it are messages.
        body_bytes: Bytes of all buffers.
        num_rows: Rows of the batch.
        nodes: Values and nulls of every column.
        places: First byte, counted from `body`, and bytes of every buffer.
    """

    body: int
    body_bytes: int
    num_rows: int
    nodes: int
    places: int


class _Decompressors(threading.local):
    """A decompressor is for one thread at a time, and dear to make."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_decompressors = _Decompressors()


def read_record_batch(data: bytes | memoryview) -> RecordBatch:
    """Reads a stream of one schema and one record batch, compressed by zstd, to its very end.

    Raises:
        ValueError: It is anything else; the message says what.
    """
    view = memoryview(data)
    try:
        kind, _, start = _read_message(view, 0)
        _expect(kind == _SCHEMA, "it does not begin with a schema")
        schema = _parse_schema(bytes(view[:start]))
        kind, message, body = _read_message(view, start)
        _expect(kind == _RECORD_BATCH, "another message than a record batch follows the schema")
        end = body + message.number("q", 3)
        _expect(body <= end <= len(view), "it is cut inside its record batch")
        _check_end(view, end)
        return _read_batch(schema, message.table(2), view[body:end])
    except (struct.error, IndexError, zstandard.ZstdError, pa.ArrowException, OSError) as error:
        raise ValueError(f"not an Arrow block: {error}") from error


def find_messages(data: bytes) -> MessagePlaces:
    """Where a stream as `read_record_batch` takes it has its sizes; none of them may be 0."""
    view = memoryview(data)
    _, _, start = _read_message(view, 0)
    _, message, body = _read_message(view, start)
    batch = message.table(2)
    places = message.place(3), batch.place(0), batch.first_place(1), batch.first_place(2)
    return MessagePlaces(body, *(start + 8 + place for place in places))


class _Table:
    """A table of a flatbuffer: fields by number, each at an offset that its table of offsets tells."""

    def __init__(self, view: memoryview, position: int) -> None:
        self._view, self._position = view, position
        self._offsets = position - _number(view, "i", position)
        self._num_bytes = _number(view, "H", self._offsets)

    def number(self, kind: str, field: int) -> int:
        """A number, 0 where the field is left out."""
        offset = self._offset(field)
        return _number(self._view, kind, self._position + offset) if offset else 0

    def table(self, field: int) -> "_Table":
        """A table within this one."""
        return _Table(self._view, self._follow(field))

    def numbers(self, field: int) -> list[int]:
        """A vector of pairs of int64, laid end to end."""
        position = self._follow(field)
        count = 2 * _number(self._view, "I", position)
        _expect(8 * count <= len(self._view), "a vector is longer than its message")
        return list(struct.unpack_from(f"<{count}q", self._view, position + 4))

    def place(self, field: int) -> int:
        """Where a number stands in the message."""
        _expect(self.has(field), f"field {field} of a message is missing")
        return self._position + self._offset(field)

    def first_place(self, field: int) -> int:
        """Where a vector's first element stands in the message."""
        return self._follow(field) + 4

    def has(self, field: int) -> bool:
        """Whether the field is there."""
        return self._offset(field) != 0

    def _offset(self, field: int) -> int:
        entry = 4 + 2 * field
        return _number(self._view, "H", self._offsets + entry) if entry < self._num_bytes else 0

    def _follow(self, field: int) -> int:
        offset = self._offset(field)
        _expect(offset != 0, f"field {field} of a message is missing")
        position = self._position + offset
        return position + _number(self._view, "I", position)


def _read_message(view: memoryview, start: int) -> tuple[int, _Table, int]:
    """A message's kind, its table, and where its body begins."""
    mark, length = struct.unpack_from("<II", view, start)
    _expect(mark == _CONTINUATION, "a message does not begin where it should")
    end = start + 8 + length
    _expect(length > 0 and end <= len(view), "it is cut inside a message")
    table = _Table(view[start + 8 : end], _number(view, "I", start + 8))
    return table.number("B", 1), table, end


@lru_cache(maxsize=64)
def _parse_schema(message: bytes) -> pa.Schema:
    """The schema of a whole message; one version of Arrow writes the same bytes every time."""
    return pa.ipc.read_schema(pa.BufferReader(message))


def _check_end(view: memoryview, end: int) -> None:
    # Arrow takes a stream without its end marker, and does not look at what follows the marker.
    rest = bytes(view[end : end + 8])
    another = len(view) > end + 8 and rest[:4] == END_OF_STREAM[:4] and rest != END_OF_STREAM
    _expect(not another, "more than one record batch", damaged=True)
    whole = rest == END_OF_STREAM and len(view) == end + 8
    _expect(whole, "its end is missing, or other bytes follow it", damaged=True)


def _read_batch(schema: pa.Schema, batch: _Table, body: memoryview) -> RecordBatch:
    nodes, places = batch.numbers(1), batch.numbers(2)
    is_list = [pa.types.is_list(kind) for kind in schema.types]
    names = [name for name, nested in zip(schema.names, is_list, strict=True) for _ in range(1 + nested)]
    num_buffers = sum(_LIST_BUFFERS if nested else _FLAT_BUFFERS for nested in is_list)
    _expect((len(nodes), len(places)) == (2 * len(names), 2 * num_buffers), "its columns are not those of its schema")
    is_compressed = batch.has(3)
    _expect(not is_compressed or batch.table(3).number("b", 0) == _ZSTD, "it is not compressed by zstd")
    read = _decompress if is_compressed else bytes
    for name, nulls in zip(names, nodes[1::2], strict=True):
        _expect(nulls == 0, f"{name} holds nulls", damaged=True)
    lengths = nodes[0::2]
    same = not lengths or (batch.number("q", 0) == lengths[0] and min(lengths) >= 0)
    _expect(same, "its columns differ in length")
    # Validity comes first in every pair of buffers, and nothing is null.
    spans = zip(places[2::4], places[3::4], strict=True)
    return RecordBatch(schema, lengths, [bytes(read(_cut(body, *span))) for span in spans])


def _cut(body: memoryview, start: int, size: int) -> memoryview:
    _expect(0 <= start <= start + size <= len(body), "a buffer lies outside its message")
    return body[start : start + size]


def _decompress(stored: memoryview) -> bytes | memoryview:
    """A buffer: the number of its bytes as int64, -1 for "stored as it is", then a zstd frame."""
    if not stored:
        return b""
    length, frame = _number(stored, "q", 0), stored[8:]
    if length == -1:
        return frame
    fits = 0 <= length <= MAX_BUFFER_BYTES
    _expect(fits, f"a buffer says it becomes {length} bytes, at most {MAX_BUFFER_BYTES} are in a block")
    _expect(zstandard.frame_content_size(frame) == length, "a buffer's length is not what its frame says")
    values: bytes = _decompressors.zstd.decompress(frame, allow_extra_data=False)
    _expect(len(values) == length, "a buffer has another length than it says")
    return values


def _number(view: memoryview, kind: str, position: int) -> int:
    _expect(position >= 0, "an offset points before its message")
    number: int = struct.unpack_from(f"<{kind}", view, position)[0]
    return number


def _expect(holds: bool, what: str, damaged: bool = False) -> None:
    if not holds:
        raise ValueError(f"{'damaged or foreign block' if damaged else 'not an Arrow block'}: {what}")
