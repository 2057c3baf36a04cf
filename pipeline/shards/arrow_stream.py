"""What one block's Arrow stream says of itself, read before Arrow is let at it (docs/format.md, section 2).

Arrow trusts the lengths in a stream: it takes as much memory as a compressed buffer says it will become, and looks at
other messages than the two that a block has. May import: stdlib, numpy.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

# A block holds at most 65,536 tokens, so no column of it is longer than as many ids of 4 bytes and their offsets.
MAX_BUFFER_BYTES = 1 << 19
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # fields of a Message
_BUFFERS, _COMPRESSION = 2, 3  # fields of a RecordBatch
_UINT32, _INT64 = struct.Struct("<I"), struct.Struct("<q")
_STORED_AS_IT_IS = -1  # the length of a buffer that compression did not shrink


def check_stream(data: bytes | memoryview) -> None:
    """Walks a stream's messages: a schema, one record batch of buffers of a bounded length, the end.

    Raises:
        ValueError: It is another stream, or its lengths do not fit.
    """
    try:
        at, schema = _read_message(data, 0)
        if schema.kind != _SCHEMA:
            raise ValueError("it does not begin with a schema")
        at, batch = _read_message(data, at)
        if batch.kind != _RECORD_BATCH:
            raise ValueError("another message than a record batch follows the schema")
        _check_buffers(batch)
    except (struct.error, IndexError) as error:
        raise ValueError(f"its messages are cut short ({error})") from error
    rest = bytes(data[at : at + len(END_OF_STREAM) + 1])
    if rest != END_OF_STREAM:
        more = len(rest) > len(END_OF_STREAM) and not rest.startswith(END_OF_STREAM)
        raise ValueError("more than one record batch" if more else "its end is missing, or other bytes follow it")


class _Message:
    """One message's flatbuffer, and the bytes that follow it."""

    def __init__(self, metadata: bytes) -> None:
        self.metadata, self.body = metadata, memoryview(b"")
        self._root = _UINT32.unpack_from(metadata, 0)[0]
        at = self.field(self._root, _HEADER_TYPE)
        self.kind = metadata[at] if at else 0
        at = self.field(self._root, _BODY_LENGTH)
        self.body_length = int(_INT64.unpack_from(metadata, at)[0]) if at else 0

    def header(self) -> int:
        """Position of the header's table."""
        at = self.field(self._root, _HEADER)
        return self.follow(at) if at else 0

    def field(self, table: int, number: int) -> int:
        """Position of a field of a table; 0 where it is absent."""
        vtable = table - struct.unpack_from("<i", self.metadata, table)[0]
        size = struct.unpack_from("<H", self.metadata, vtable)[0] if vtable >= 0 else 0
        slot = 4 + 2 * number
        if slot + 2 > size:
            return 0
        offset: int = struct.unpack_from("<H", self.metadata, vtable + slot)[0]
        return table + offset if offset else 0

    def follow(self, at: int) -> int:
        """Position that the reference at a position leads to."""
        return at + int(_UINT32.unpack_from(self.metadata, at)[0])

    def pairs(self, at: int) -> npt.NDArray[np.int64]:
        """[n, 2] the vector of structs of two int64 that the reference at a position leads to."""
        start = self.follow(at)
        count = int(_UINT32.unpack_from(self.metadata, start)[0])
        if start + 4 + 16 * count > len(self.metadata):
            raise IndexError("a vector is longer than its message")
        return np.frombuffer(self.metadata, "<i8", 2 * count, start + 4).reshape(count, 2)


def _read_message(data: Any, at: int) -> tuple[int, _Message]:
    """The message at a position, and where the next one begins."""
    mark, size = struct.unpack_from("<II", data, at)
    if mark != _CONTINUATION or not 4 <= size <= len(data) - at - 8:
        raise ValueError("not a message where one is expected")
    metadata = bytes(data[at + 8 : at + 8 + size])
    body, message = at + 8 + size, _Message(metadata)
    length = message.body_length
    if not 0 <= length <= len(data) - body:
        raise ValueError(f"a message says that {length} bytes follow it, there are {len(data) - body}")
    message.body = memoryview(data)[body : body + length]
    return body + length, message


def _check_buffers(batch: _Message) -> None:
    """Every buffer inside the body, none longer than a block's can be, as it is stored and after decompression."""
    header = batch.header()
    place = batch.field(header, _BUFFERS)
    buffers = batch.pairs(place) if place else np.zeros((0, 2), np.int64)
    is_compressed = bool(batch.field(header, _COMPRESSION))
    for offset, length in buffers.tolist():
        if not (0 <= offset <= len(batch.body) and 0 <= length <= len(batch.body) - offset):
            raise ValueError(
                f"a buffer of {length} bytes at {offset} lies outside the {len(batch.body)} of its message"
            )
        becomes = length
        if is_compressed and length:
            becomes = _INT64.unpack_from(batch.body, offset)[0] if length >= _INT64.size else -2
            becomes = length if becomes == _STORED_AS_IT_IS else becomes
        if not 0 <= becomes <= MAX_BUFFER_BYTES:
            raise ValueError(f"a buffer says it becomes {becomes} bytes, at most {MAX_BUFFER_BYTES} are in a block")
