"""google-research/bert's TensorFlow checkpoints, read without TensorFlow: weights under our names.

    NAME.index                  a LevelDB table: name -> dtype, shape, shard, offset, size, crc
    NAME.data-00000-of-00001    the tensors' bytes, little endian

Written from tensorflow/core/protobuf/tensor_bundle.proto and leveldb/doc/table_format.md (format
V2). Dense kernels are stored transposed. Ours is the exact GELU of Google's code of 2018.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.storage.folder import Folder
from pipeline.storage.tensorflow_bytes import masked_crc32c
from trainer.conversion.export import read_json
from trainer.conversion.huggingface import from_hf_config, from_hf_state, hf_names
from trainer.conversion.names import GOOGLE_CONFIG
from trainer.model.config import BertConfig

_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
}
MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # one of compression, four of crc32c
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CRC, _SLICES = range(1, 8)  # fields of an entry

Fields = dict[int, list[Any]]


class TensorBundle:
    """A checkpoint's tensors by name, by a function that reads the file called NAME + a suffix."""

    def __init__(self, where: str, read: Callable[[str], bytes]) -> None:
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
        key, position = _varints(data, 1, position)
        value: int | bytes
        match key & 7:
            case 0:
                value, position = _varints(data, 1, position)
            case 2:
                size, position = _varints(data, 1, position)
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
        value = shift = 0
        while (byte := data[position]) >= 0x80:
            value |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
        values.append(value | byte << shift)
        position += 1
    return [*values, position]


def load_google(folder: str, name: str) -> tuple[BertConfig, dict[str, Tensor]]:
    """Config and parameters (fp32) of a checkpoint, without the optimizer's slots and the step."""
    where, files = f"{folder}/{name}", Folder(folder)
    config = from_hf_config(read_json(folder, GOOGLE_CONFIG), f"{folder}/{GOOGLE_CONFIG}")
    bundle = TensorBundle(where, lambda suffix: files.read(name + suffix))
    known = {theirs: _google_name(theirs) for theirs in hf_names(config).values()}
    others = sorted(bundle.names.difference(known.values()))
    ours = [each for each in others if each.startswith(("bert/", "cls/"))]
    # An optimizer's slot is called VARIABLE/adam_m, for example.
    unknown = [each for each in ours if each.rpartition("/")[0] not in known.values()]
    if unknown:
        says = f"variables {', '.join(unknown[:5])} belong to no BERT of {config.num_layers} layers"
        raise ValueError(f"{where}: {says}")
    found = {}
    for theirs, variable in known.items():
        if variable in bundle.names:
            values = bundle.read(variable)
            values = values.T if variable.endswith("/kernel") else values
            found[theirs] = torch.from_numpy(np.array(values, order="C"))
    return config, from_hf_state(found, config, where)


def _google_name(name: str) -> str:
    if name in _HEADS:
        return _HEADS[name]
    path = re.sub(r"\.layer\.(\d+)\.", r"/layer_\1/", name).replace(".", "/")
    if "LayerNorm" in path:
        return path.replace("/weight", "/gamma").replace("/bias", "/beta")
    if path.endswith("_embeddings/weight"):
        return path.removesuffix("/weight")
    return path.replace("/weight", "/kernel")
