"""Reads TensorFlow checkpoints (format V2, "tensor bundle") without TensorFlow.

    NAME.index                  a LevelDB table: name -> dtype, shape, shard, offset, size, crc
    NAME.data-00000-of-00001    the tensors' bytes, little endian

Written from tensorflow/core/protobuf/tensor_bundle.proto and leveldb/doc/table_format.md. Every
block and tensor is held to its crc32c.
"""

import math
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.storage.tensorflow_bytes import masked_crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # one of compression, four of crc32c
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CRC, _SLICES = range(1, 8)  # fields of an entry

Fields = dict[int, list[Any]]


class TensorBundle:
    """A checkpoint's tensors by name; data is read when a tensor of its file is asked for."""

    def __init__(self, where: str, read: Callable[[str], bytes]) -> None:
        """Opens the index, by a function that reads the file called NAME + a suffix."""
        self.where, self._read = where, lru_cache(read)
        try:
            table = dict(_table_entries(read(".index")))
            header = _fields(table.pop(b""))
            self._entries = {key.decode(): _fields(value) for key, value in table.items()}
            self._shapes = {name: _shape(entry) for name, entry in self._entries.items()}
        except (IndexError, KeyError, TypeError, struct.error, ValueError) as error:
            says = f"not a TensorFlow checkpoint, or damaged ({error}); copy the checkpoint again"
            raise ValueError(f"{where}.index: {says}") from error
        self._num_shards = _number(header, 1, 1)
        if _number(header, 2):
            raise ValueError(f"{where}: written on a big-endian machine, which is not read here")
        self.names = frozenset(self._entries)

    def read(self, name: str) -> NDArray[Any]:
        """One tensor; strings, bfloat16 and sliced variables are not read."""
        entry, shape = self._entries[name], self._shapes[name]
        kind = _number(entry, _DTYPE)
        if kind not in DTYPES or _SLICES in entry:
            says = f"{name} has dtype {kind} or is cut into slices; not read here"
            raise ValueError(f"{self.where}: {says}")
        dtype: np.dtype[Any] = np.dtype(DTYPES[kind])
        suffix = f".data-{_number(entry, _SHARD):05d}-of-{self._num_shards:05d}"
        offset, size = _number(entry, _OFFSET), _number(entry, _SIZE)
        data = self._read(suffix)[offset : offset + size]
        expected = math.prod(shape) * dtype.itemsize
        is_whole = len(data) == size == expected
        if not is_whole or masked_crc32c(data) != _number(entry, _CRC):
            says = f"{name} is damaged: {len(data)} bytes of {expected}, or another crc32c"
            raise ValueError(f"{self.where}{suffix}: {says}; copy the checkpoint again")
        return np.frombuffer(data, dtype).reshape(shape)


def _table_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table."""
    footer = data[-FOOTER_BYTES:]
    if len(footer) < FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != MAGIC:
        raise ValueError("it does not end as an index does")
    _, _, start, size, _ = _varints(footer, 4)  # of the table's metadata, and of its index
    for _, place in _block_entries(_block(data, start, size)):
        yield from _block_entries(_block(data, *_varints(place, 2)[:2]))


def _block(data: bytes, start: int, size: int) -> bytes:
    block = data[start : start + size + TRAILER_BYTES]
    is_whole = len(block) == size + TRAILER_BYTES
    if not is_whole or masked_crc32c(block[:-4]) != struct.unpack("<I", block[-4:])[0]:
        raise ValueError("a block is cut short or has another crc32c")
    if block[size]:
        raise ValueError(f"a block is compressed, type {block[size]}: not read here")
    return block[:size]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries share a prefix with the key before; their end is a list of restart points."""
    end = len(block) - 4 - 4 * int(struct.unpack("<I", block[-4:])[0])
    position, key = 0, b""
    while position < end:
        shared, fresh, size, position = _varints(block, 3, position)
        key = key[:shared] + block[position : position + fresh]
        position += fresh
        yield key, block[position : position + size]
        position += size


def _shape(entry: Fields) -> tuple[int, ...]:
    sizes = [size for shape in entry.get(_SHAPE, []) for size in _fields(shape).get(2, [])]
    return tuple(_number(_fields(size), 1) for size in sizes)


def _number(fields: Fields, field: int, default: int = 0) -> int:
    return int(fields.get(field, [default])[0])


def _fields(data: bytes) -> Fields:
    """Fields of a protocol buffer by number: numbers as int, everything else as bytes."""
    fields: Fields = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        value: int | bytes
        match key & 7:
            case 0:
                value, position = _varint(data, position)
            case 2:
                size, position = _varint(data, position)
                value, position = data[position : position + size], position + size
            case 5:
                value, position = struct.unpack_from("<I", data, position)[0], position + 4
            case kind:
                raise ValueError(f"a protocol buffer has a field of unknown kind {kind}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varints(data: bytes, count: int, position: int = 0) -> list[int]:
    """So many numbers, and where they end."""
    values = []
    for _ in range(count):
        value, position = _varint(data, position)
        values.append(value)
    return [*values, position]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
