"""Writes instances as TFRecord files of tf.train.Example.

run_pretraining.py of google-research/bert reads such files. The protocol buffers are encoded here,
so TensorFlow is not needed.

Suffixes of arrays name their dimensions: N instances of a block, L sequence length, P the most
masked positions of an instance.
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

_VALUES = 1
"""Number of the only field of the messages Int64List and FloatList."""
_FLOATS = 2
"""Number of the field of a Feature that holds a FloatList."""
_INTEGERS = 3
"""Number of the field of a Feature that holds an Int64List."""
_BITS = np.arange(0, 35, 7, dtype=np.uint32)
"""The lowest bit of a number below 2^32 that each byte of its varint holds."""


def write_records(file: IO[bytes], blocks: Iterable[Block], plan: Mapping[str, Any]) -> None:
    """Writes a TFRecord file with one record for each instance.

    Args:
        file: Where to write.
        blocks: The instances, which are taken lazily.
        plan: The result of `plan_export`. Every instance is padded to the plan's `seq_len` tokens
            and `max_predictions` masked positions.
    """
    for block in blocks:
        examples = encode_examples(block, plan["seq_len"], plan["max_predictions"])
        file.write(b"".join(part for example in examples for part in _frame(example)))


def encode_examples(block: Block, seq_len: int, max_predictions: int) -> Iterator[bytes]:
    """Yields a serialized tf.train.Example for each instance of a block.

    Its features are those of `write_instance_to_example_files` in google-research/bert.

    Args:
        block: The instances.
        seq_len: L. The tokens of an instance are padded with zeros to this number.
        max_predictions: P. The masked positions of an instance are padded with zeros to this
            number.
    """
    input_ids_NL, is_token_NL = _pad(block.input_ids, block.offsets, seq_len)
    segment_ids_NL = is_token_NL & (np.arange(seq_len) >= block.segment_a_length[:, None])
    positions_NP, is_masked_NP = _pad(
        block.masked_lm_positions, block.masked_offsets, max_predictions
    )
    label_ids_NP, _ = _pad(block.masked_lm_ids, block.masked_offsets, max_predictions)

    integers = {
        "input_ids": input_ids_NL,
        "input_mask": is_token_NL,
        "segment_ids": segment_ids_NL,
        "masked_lm_positions": positions_NP,
        "masked_lm_ids": label_ids_NP,
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
    """Puts the values of each instance into a row, and fills the row with zeros.

    Args:
        values: The values of all instances, one instance after another.
        offsets: [N + 1] integers. Instance i has the values from offsets[i] to offsets[i + 1] - 1.
        width: The number of columns of both results.

    Returns:
        [N, width] uint32 array of the values and zeros; and [N, width] bool array that is True for
        values and False for the zeros after them.
    """
    is_value = np.arange(width) < np.diff(offsets)[:, None]
    padded = np.zeros(is_value.shape, np.uint32)
    padded[is_value] = values
    return padded, is_value


def _varints(values: Array) -> list[bytes]:
    """Encodes numbers as varints of protocol buffers.

    A varint has seven bits of the number in each byte, the lowest first. The highest bit of a byte
    says that another byte follows.

    Args:
        values: [N, n] integers from 0 to 2^32 - 1, or booleans.

    Returns:
        For each row, the bytes of all its numbers one after another.
    """
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
    """Returns the bytes that precede the values of a feature in a serialized tf.train.Example.

    These bytes hold the feature's name, its kind, and the lengths of all that follows. The caller
    appends the values.

    Args:
        name: The name of the feature.
        kind: The kind of its values: `_FLOATS` or `_INTEGERS`.
        num_bytes: The number of bytes of the encoded values.
    """
    values = bytes(num_bytes)
    feature = bytes_field(kind, bytes_field(_VALUES, values))
    entry = bytes_field(1, bytes_field(1, name.encode()) + bytes_field(2, feature))
    return entry.removesuffix(values)


def _frame(record: bytes) -> tuple[bytes, ...]:
    """Returns the four pieces of bytes that make up a record in a TFRecord file.

    They are the length of the record, the checksum of the length, the record, and the checksum of
    the record. The caller concatenates them.
    """
    length = struct.pack("<Q", len(record))
    length_checksum = struct.pack("<I", masked_crc32c(length))
    record_checksum = struct.pack("<I", masked_crc32c(record))
    return length, length_checksum, record, record_checksum
