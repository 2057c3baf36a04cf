"""TFRecord files of tf.train.Example as google-research/bert's run_pretraining.py reads them, without TensorFlow.

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
    """A serialized tf.train.Example for each instance: what write_instance_to_example_files would have made of it."""
    input_ids_NL, is_token_NL = _pad(block.input_ids, block.offsets, seq_len)
    segment_ids_NL = is_token_NL & (np.arange(seq_len) >= block.segment_a_length[:, None])
    positions_NP, is_masked_NP = _pad(
        block.masked_lm_positions, block.masked_offsets, max_predictions
    )
    masked_lm_ids_NP, _ = _pad(block.masked_lm_ids, block.masked_offsets, max_predictions)
    columns = {
        "input_ids": (_INTEGERS, _varints(input_ids_NL)),
        "input_mask": (_INTEGERS, _varints(is_token_NL)),
        "segment_ids": (_INTEGERS, _varints(segment_ids_NL)),
        "masked_lm_positions": (_INTEGERS, _varints(positions_NP)),
        "masked_lm_ids": (_INTEGERS, _varints(masked_lm_ids_NP)),
        "masked_lm_weights": (_FLOATS, [row.tobytes() for row in is_masked_NP.astype("<f4")]),
        "next_sentence_labels": (_INTEGERS, _varints(block.is_random_next[:, None])),
    }
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
    """Each row's numbers, packed: seven bits a byte, the lowest first, and the highest bit where another byte comes."""
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
    """All of an entry of the map of features but the bytes of its packed values, which come last."""
    values = bytes(num_bytes)
    feature = bytes_field(kind, bytes_field(_VALUES, values))
    entry = bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, feature))
    return entry.removesuffix(values)


def _frame(record: bytes) -> tuple[bytes, ...]:
    """A record of a TFRecord file: its length and its bytes, each followed by its crc32c."""
    parts = struct.pack("<Q", len(record)), record
    return tuple(each for part in parts for each in (part, struct.pack("<I", masked_crc32c(part))))
