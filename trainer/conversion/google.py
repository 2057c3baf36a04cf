"""Reads the TensorFlow checkpoints of google-research/bert without TensorFlow.

    NAME.index                  a LevelDB table: name -> dtype, shape, shard, offset, size, crc32c
    NAME.data-00000-of-00001    a shard: the bytes of tensors, little endian

The formats are defined by tensorflow/core/protobuf/tensor_bundle.proto (V2) and
leveldb/doc/table_format.md. The kernels of dense layers are stored transposed, compared with the
weights of torch. Our model computes the exact GELU, as Google's code of 2018 did.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
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
TRAILER_BYTES = 5
"""The end of a block: a byte that names its compression, and four bytes of crc32c."""
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""The data types that can be read: from TensorFlow's number of each to numpy's name."""
# Numbers of the fields of a BundleEntryProto.
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CRC, _SLICES = range(1, 8)

Fields = dict[int, list[Any]]
"""The values of a protocol buffer: from the number of a field to the list of its values."""


class TensorBundle:
    """Reads the tensors of a TensorFlow checkpoint by their names.

    Attributes:
        where: The checkpoint, for messages.
        names: The names of all tensors.
    """

    def __init__(self, where: str, read: Callable[[str], bytes]) -> None:
        """Reads the index of the checkpoint.

        Args:
            where: The checkpoint, for messages.
            read: Takes the suffix of a file of the checkpoint, such as ".index", and returns the
                file's content.

        Raises:
            ValueError: The index is damaged.
        """
        self.where = where
        self._read = lru_cache(read)
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
        """Reads one tensor, and checks its size and crc32c.

        Args:
            name: The name of the tensor, one of `names`.

        Raises:
            ValueError: The tensor is damaged, is cut into slices, or has a type that is not
                supported, such as strings or bfloat16.
        """
        entry = self._entries[name]
        shape = self._shapes[name]
        kind = _number(entry, _DTYPE)
        if kind not in DTYPES or _SLICES in entry:
            says = f"{name} has dtype {kind} or is cut into slices; not read here"
            raise ValueError(f"{self.where}: {says}")
        dtype: np.dtype[Any] = np.dtype(DTYPES[kind])
        suffix = f".data-{_number(entry, _SHARD):05d}-of-{self._num_shards:05d}"
        offset = _number(entry, _OFFSET)
        size = _number(entry, _SIZE)
        data = self._read(suffix)[offset : offset + size]
        expected = math.prod(shape) * dtype.itemsize
        is_whole = len(data) == size == expected
        if not is_whole or masked_crc32c(data) != _number(entry, _CRC):
            says = f"{name} is damaged: {len(data)} bytes of {expected}, or another crc32c"
            raise ValueError(f"{self.where}{suffix}: {says}; copy the checkpoint again")
        return np.frombuffer(data, dtype).reshape(shape)


def _table_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a LevelDB table.

    Raises:
        ValueError: The table is damaged or compressed.
    """
    footer = data[-FOOTER_BYTES:]
    if len(footer) < FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != MAGIC:
        raise ValueError("it does not end as an index does")
    # The footer has start and size of the block of metadata, then those of the block of the index.
    _, _, index_start, index_size, _ = _varints(footer, 4)
    for _, handle in _block_entries(_block(data, index_start, index_size)):
        start, size, _ = _varints(handle, 2)
        yield from _block_entries(_block(data, start, size))


def _block(data: bytes, start: int, size: int) -> bytes:
    """Returns a block of a LevelDB table, after a check of its crc32c.

    Args:
        data: The whole table.
        start: Position of the block in the table.
        size: Number of bytes of the block, without the trailer that follows it.

    Raises:
        ValueError: The block is damaged or compressed.
    """
    block = data[start : start + size + TRAILER_BYTES]
    is_whole = len(block) == size + TRAILER_BYTES
    if not is_whole or masked_crc32c(block[:-4]) != struct.unpack("<I", block[-4:])[0]:
        raise ValueError("a block is cut short or has another crc32c")
    if block[size]:
        raise ValueError(f"a block is compressed, type {block[size]}: not read here")
    return block[:size]


def _block_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block.

    A key is stored as the length of the prefix that it shares with the key before, and the bytes
    after this prefix. A list of restart points, which is not needed here, ends the block.
    """
    num_restarts = int(struct.unpack("<I", block[-4:])[0])
    end = len(block) - 4 - 4 * num_restarts
    position = 0
    key = b""
    while position < end:
        num_shared, num_new, size, position = _varints(block, 3, position)
        key = key[:num_shared] + block[position : position + num_new]
        position += num_new
        yield key, block[position : position + size]
        position += size


def _shape(entry: Fields) -> tuple[int, ...]:
    """Returns the shape of a tensor.

    Args:
        entry: The fields of the tensor's entry in the index, a BundleEntryProto.
    """
    sizes = [size for shape in entry.get(_SHAPE, []) for size in _fields(shape).get(2, [])]
    return tuple(_number(_fields(size), 1) for size in sizes)


def _number(fields: Fields, field: int, default: int = 0) -> int:
    """Returns the first value of a field, or the default if the field is absent."""
    return int(fields.get(field, [default])[0])


def _fields(data: bytes) -> Fields:
    """Parses the fields of a protocol buffer.

    The values of varints and 32-bit numbers are int. Those of strings and embedded messages are
    bytes.

    Raises:
        ValueError: A field has a type that is none of these.
    """
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
                value = data[position : position + size]
                position += size
            case 5:
                value = struct.unpack_from("<I", data, position)[0]
                position += 4
            case kind:
                raise ValueError(f"a protocol buffer has a field of unknown kind {kind}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varints(data: bytes, count: int, position: int = 0) -> list[int]:
    """Reads numbers that are stored as varints, one after another.

    Each byte of a varint has 7 bits of the number, the lowest bits first. The highest bit of a byte
    says whether another byte follows.

    Args:
        data: The bytes.
        count: How many numbers are read.
        position: Position of the first number in `data`.

    Returns:
        The numbers, and as the last entry the position after them.
    """
    values = []
    for _ in range(count):
        value = 0
        shift = 0
        while (byte := data[position]) >= 0x80:
            value |= (byte & 0x7F) << shift
            position += 1
            shift += 7
        values.append(value | byte << shift)
        position += 1
    return [*values, position]


def load_google(
    folder: str, name: str, options: Mapping[str, Any] | None = None
) -> tuple[BertConfig, dict[str, Tensor]]:
    """Reads the model in a checkpoint, without the states of its optimizer.

    Args:
        folder: A local folder or an fsspec URL.
        name: The checkpoint in the folder, such as "bert_model.ckpt".
        options: Options of the filesystem of a folder at a URL.

    Returns:
        The configuration, and the parameters under our names, fp32, on the CPU.

    Raises:
        ValueError: The checkpoint is damaged, or its variables are not those of a BERT of this
            configuration.
    """
    where = f"{folder}/{name}"
    files = Folder(folder, options)
    settings = read_json(folder, GOOGLE_CONFIG, options)
    config = from_hf_config(settings, f"{folder}/{GOOGLE_CONFIG}")
    bundle = TensorBundle(where, lambda suffix: files.read(name + suffix))
    variables = {hf_name: _google_name(hf_name) for hf_name in hf_names(config).values()}
    others = sorted(bundle.names.difference(variables.values()))
    of_model = [other for other in others if other.startswith(("bert/", "cls/"))]
    # The states of the optimizer are called VARIABLE/adam_m, for example.
    unknown = [other for other in of_model if other.rpartition("/")[0] not in variables.values()]
    if unknown:
        says = f"variables {', '.join(unknown[:5])} belong to no BERT of {config.num_layers} layers"
        raise ValueError(f"{where}: {says}")

    tensors = {}
    for hf_name, variable in variables.items():
        if variable in bundle.names:
            values = bundle.read(variable)
            values = values.T if variable.endswith("/kernel") else values
            tensors[hf_name] = torch.from_numpy(np.array(values, order="C"))
    return config, from_hf_state(tensors, config, where)


def _google_name(name: str) -> str:
    """Translates the name of a parameter from transformers to google-research/bert.

    For example, "bert.pooler.dense.weight" becomes "bert/pooler/dense/kernel".
    """
    if name in _HEADS:
        return _HEADS[name]
    path = re.sub(r"\.layer\.(\d+)\.", r"/layer_\1/", name).replace(".", "/")
    if "LayerNorm" in path:
        return path.replace("/weight", "/gamma").replace("/bias", "/beta")
    if path.endswith("_embeddings/weight"):
        return path.removesuffix("/weight")
    return path.replace("/weight", "/kernel")
