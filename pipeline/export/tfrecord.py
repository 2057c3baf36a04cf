"""TFRecord files of tf.train.Example as google-research/bert's run_pretraining.py reads them.

N instances of a block, L the sequence length, P the most masked positions.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.block import Block
from pipeline.storage.tensorflow_bytes import bytes_field, masked_crc32c

Array = npt.NDArray[Any]

_VALUES = 1  # the field of an Int64List and of a FloatList
_FLOATS, _INTEGERS = 2, 3  # fields of a Feature
_BITS = np.arange(0, 35, 7, dtype=np.uint32)
"""The first of the bits that each byte of a number below 2^32 holds."""


def write_records(file: IO[bytes], blocks: Iterable[Block], plan: Mapping[str, Any]) -> None:
    """Writes a record for each instance, padded to the plan's tokens and masked positions."""
    for block in blocks:
        examples = encode_examples(block, plan["seq_len"], plan["max_predictions"])
        file.write(b"".join(part for example in examples for part in _frame(example)))


def encode_examples(block: Block, seq_len: int, max_predictions: int) -> Iterator[bytes]:
    """A serialized tf.train.Example for each instance, as write_instance_to_example_files makes."""
    input_ids_NL, is_token_NL = _pad(block.input_ids, block.offsets, seq_len)
    segment_ids_NL = is_token_NL & (np.arange(seq_len) >= block.segment_a_length[:, None])
    masked = block.masked_offsets, max_predictions
    positions_NP, is_masked_NP = _pad(block.masked_lm_positions, *masked)
    integers = {
        "input_ids": input_ids_NL,
        "input_mask": is_token_NL,
        "segment_ids": segment_ids_NL,
        "masked_lm_positions": positions_NP,
        "masked_lm_ids": _pad(block.masked_lm_ids, *masked)[0],
    }
    columns = {name: (_INTEGERS, _varints(values)) for name, values in integers.items()}
    weights = [row.tobytes() for row in is_masked_NP.astype("<f4")]
    columns["masked_lm_weights"] = _FLOATS, weights
    columns["next_sentence_labels"] = _INTEGERS, _varints(block.is_random_next[:, None])
    for row in range(block.num_instances):
        features = [
            _head(name, kind, len(rows[row])) + rows[row] for name, (kind, rows) in columns.items()
        ]
        yield bytes_field(1, b"".join(features))


def _pad(values: Array, offsets: Array, width: int) -> tuple[Array, Array]:
    """The values of each instance, then zeros; and where they are values."""
    is_value = np.arange(width) < np.diff(offsets)[:, None]
    padded = np.zeros(is_value.shape, np.uint32)
    padded[is_value] = values
    return padded, is_value


def _varints(values: Array) -> list[bytes]:
    """Each row's numbers, packed: seven bits a byte, the highest bit where another byte comes."""
    width = max(1, -(-int(values.max()).bit_length() // 7))
    digits = values.astype(np.uint32)[..., None] >> _BITS[:width]
    is_used = digits > 0
    is_used[..., 0] = True
    digits &= 0x7F
    digits[..., :-1] |= is_used[..., 1:].astype(np.uint32) << 7
    packed = digits[is_used].astype(np.uint8).tobytes()
    ends = [0, *np.cumsum(is_used.sum(axis=(1, 2))).tolist()]
    return [packed[start:stop] for start, stop in itertools.pairwise(ends)]


@lru_cache(maxsize=4096)
def _head(name: str, kind: int, num_bytes: int) -> bytes:
    """All of an entry of the map of features but its packed values, which come last."""
    values = bytes(num_bytes)
    feature = bytes_field(kind, bytes_field(_VALUES, values))
    entry = bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, feature))
    return entry.removesuffix(values)


def _frame(record: bytes) -> tuple[bytes, ...]:
    """A record of a TFRecord file: its length and its bytes, each followed by its crc32c."""
    parts = struct.pack("<Q", len(record)), record
    return tuple(each for part in parts for each in (part, struct.pack("<I", masked_crc32c(part))))
