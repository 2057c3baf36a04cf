"""Reads TensorFlow checkpoints (format V2, "tensor bundle") without TensorFlow.

    NAME.index                  a LevelDB table: name -> dtype, shape, shard, offset, size, crc
    NAME.data-00000-of-00001    the tensors' bytes, little endian

Written from the format's description (tensorflow/core/protobuf/tensor_bundle.proto,
leveldb/doc/table_format.md). Nothing is executed and every block and tensor is held to its crc32c.
"""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.tensorflow_bytes import masked_crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # one of compression, four of crc32c
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    19: np.dtype("<f2"),
}

Reader = Callable[[str, tuple[int, int] | None], bytes]


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    is_sliced: bool


class TensorBundle:
    """A checkpoint's tensors by name; the index is read at once, tensors when they are asked for.

    Attributes:
        where: The checkpoint, for messages.
        names: Names of all tensors in it.
    """

    def __init__(self, where: str, read: Reader) -> None:
        """Opens the index.

        Args:
            where: The checkpoint, for messages.
            read: Bytes [start, stop) of the file called NAME + a suffix; all of it for None.

        Raises:
            ValueError: It is damaged or in a form that is not read.
        """
        self.where = where
        self._read = read
        try:
            table = dict(_table_entries(read(".index", None)))
            header = _fields(table.pop(b""))
            self._num_shards = int(header.get(1, [1])[0])
            self._entries = {key.decode(): _parse_entry(value) for key, value in table.items()}
        except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
            raise ValueError(
                f"{where}.index: not a TensorFlow checkpoint, or damaged ({error!r})"
            ) from error
        except ValueError as error:
            raise ValueError(f"{where}.index: {error}") from error
        if header.get(2, [0])[0]:
            raise ValueError(f"{where}: written on a big-endian machine, which is not read here")
        self.names = frozenset(self._entries)

    def read(self, name: str) -> npt.NDArray[Any]:
        """One tensor.

        Raises:
            ValueError: Damaged, or of a kind that is not read (strings, bfloat16, sliced
                variables).
        """
        entry = self._entries[name]
        if entry.dtype not in DTYPES or entry.is_sliced:
            raise ValueError(
                f"{self.where}: {name} has dtype {entry.dtype} or is cut into slices; not read here"
            )
        dtype = DTYPES[entry.dtype]
        suffix = f".data-{entry.shard:05d}-of-{self._num_shards:05d}"
        data = self._read(suffix, (entry.offset, entry.offset + entry.size))
        expected = math.prod(entry.shape) * dtype.itemsize
        if not len(data) == entry.size == expected or masked_crc32c(data) != entry.crc32c:
            raise ValueError(
                f"{self.where}{suffix}: {name} is damaged: {len(data)} bytes of {expected}, or another crc32c; "
                "copy the checkpoint again"
            )
        values: npt.NDArray[Any] = np.frombuffer(data, dtype)
        return values.reshape(entry.shape)


def _table_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a LevelDB table."""
    footer = data[-FOOTER_BYTES:]
    if len(footer) < FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != MAGIC:
        raise ValueError(
            "it does not end as a TensorFlow checkpoint's index does; copy the checkpoint again"
        )
    _, position = _handle(footer, 0)  # of the table's metadata
    index, _ = _handle(footer, position)
    for _, value in _block_entries(_block(data, index)):
        yield from _block_entries(_block(data, _handle(value, 0)[0]))


def _block(data: bytes, handle: tuple[int, int]) -> bytes:
    start, size = handle
    block = data[start : start + size + TRAILER_BYTES]
    if (
        len(block) != size + TRAILER_BYTES
        or masked_crc32c(block[:-4]) != struct.unpack("<I", block[-4:])[0]
    ):
        raise ValueError("a block is cut short or has another crc32c; copy the checkpoint again")
    if block[size]:
        raise ValueError(
            f"a block is compressed (type {block[size]}), which TensorFlow's writers do not do"
        )
    return block[:size]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries share a prefix with the key before; their end is a list of restart points."""
    end = len(block) - 4 - 4 * int(struct.unpack("<I", block[-4:])[0])
    position, key = 0, b""
    while position < end:
        shared, position = _varint(block, position)
        fresh, position = _varint(block, position)
        size, position = _varint(block, position)
        key = key[:shared] + block[position : position + fresh]
        position += fresh
        yield key, block[position : position + size]
        position += size


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = _varint(data, position)
    size, position = _varint(data, position)
    return (offset, size), position


def _parse_entry(data: bytes) -> _Entry:
    fields = _fields(data)
    sizes = [size for shape in fields.get(2, []) for size in _fields(_as_bytes(shape)).get(2, [])]
    return _Entry(
        dtype=int(fields.get(1, [0])[0]),
        shape=tuple(int(_fields(_as_bytes(size)).get(1, [0])[0]) for size in sizes),
        shard=int(fields.get(3, [0])[0]),
        offset=int(fields.get(4, [0])[0]),
        size=int(fields.get(5, [0])[0]),
        crc32c=int(fields.get(6, [0])[0]),
        is_sliced=7 in fields,
    )


def _as_bytes(value: int | bytes) -> bytes:
    """A field that holds others; of a number Python would make as many zeros."""
    if isinstance(value, int):
        raise ValueError(  # noqa: TRY004
            f"a protocol buffer has the number {value} where fields belong; copy the checkpoint again"
        )
    return value


def _fields(data: bytes) -> dict[int, list[int | bytes]]:
    """Fields of a protocol buffer by number: numbers as int, everything else as bytes."""
    fields: dict[int, list[int | bytes]] = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        value: int | bytes
        match key & 7:
            case 0:
                value, position = _varint(data, position)
            case 1:
                value, position = struct.unpack_from("<Q", data, position)[0], position + 8
            case 2:
                size, position = _varint(data, position)
                value, position = data[position : position + size], position + size
            case 5:
                value, position = struct.unpack_from("<I", data, position)[0], position + 4
            case kind:
                raise ValueError(f"a protocol buffer has a field of unknown kind {kind}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
