"""Writes TensorFlow checkpoints (format V2) without TensorFlow: what tensor_bundle.py reads.

Names are in order, in one block of the index and one file of data, as TensorFlow's Saver leaves
them: the same tensors give the same bytes.
"""

import struct
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

import numpy.typing as npt

from pipeline.storage.tensorflow_bytes import bytes_field, masked_crc32c, varint
from trainer.conversion.tensor_bundle import DTYPES, FOOTER_BYTES, MAGIC, TRAILER_BYTES

INDEX_SUFFIX, DATA_SUFFIX = ".index", ".data-00000-of-00001"
_HEADER = (
    b"\x08\x01\x1a\x02\x08\x01"  # BundleHeaderProto: one file of data, little endian, version 1
)
_RESTART_INTERVAL = 16
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def bundle_files(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    """The files of a checkpoint by their suffix.

    Args:
        tensors: Tensors by name; float16, float32, float64, int32 or int64.
    """
    entries, chunks, offset = [(b"", _HEADER)], [], 0
    for name in sorted(tensors):
        values = tensors[name]
        data = values.tobytes()
        entries.append((name.encode(), _entry(_NUMBERS[values.dtype], values.shape, offset, data)))
        chunks.append(data)
        offset += len(data)
    return {INDEX_SUFFIX: _table(entries), DATA_SUFFIX: b"".join(chunks)}


def _entry(dtype: int, shape: tuple[int, ...], offset: int, data: bytes) -> bytes:
    """BundleEntryProto."""
    dimensions = b"".join(bytes_field(2, _number_field(1, size)) for size in shape)
    head = _number_field(1, dtype) + bytes_field(2, dimensions)
    place = _number_field(4, offset) + _number_field(5, len(data))
    return head + place + b"\x35" + struct.pack("<I", masked_crc32c(data))  # field 6, of 32 bits


def _number_field(number: int, value: int) -> bytes:
    """A field of a protocol buffer, which leaves zeros out."""
    return varint(number << 3) + varint(value) if value else b""


def _table(entries: list[tuple[bytes, bytes]]) -> bytes:
    """A LevelDB table: the entries, an empty block about it, an index of the one block."""
    data, about = _block(entries), _block([])
    index = _block([(_successor(entries[-1][0]), _handle(0, data))])
    handles = _handle(len(data), about) + _handle(len(data) + len(about), index)
    return data + about + index + handles.ljust(FOOTER_BYTES - 8, b"\0") + struct.pack("<Q", MAGIC)


def _handle(start: int, block: bytes) -> bytes:
    return varint(start) + varint(len(block) - TRAILER_BYTES)


def _block(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Every key without the prefix that it shares with the one before; then the block's trailer."""
    block, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(entries):
        if number % _RESTART_INTERVAL == 0:
            restarts.append(len(block))
            before = b""
        shared = sum(
            1 for _ in takewhile(lambda both: both[0] == both[1], zip(before, key, strict=False))
        )
        block += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        before = key
    restarts = restarts or [0]
    block += (
        struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts)) + b"\0"
    )  # not compressed
    return block + struct.pack("<I", masked_crc32c(block))


def _successor(key: bytes) -> bytes:
    """The shortest key not below this one, as LevelDB finds it: a letter for ASCII names."""
    return bytes([key[0] + 1])
