"""Packed instances from the spans of a bucket's tokens that pipeline.instances.pairs finds.

Compiled loops, where they are at hand, do the same as what is written here.

Shapes: N pairs, T packed tokens.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import pipeline.instances.compiled as compiled
from pipeline.instances.pairs import NUM_SPECIAL_TOKENS, Pairs


@dataclass(frozen=True)
class PackedPairs:
    """N instances [CLS] A [SEP] B [SEP] end to end, without padding and not masked yet."""

    input_ids: npt.NDArray[np.unsignedinteger]  # [T]
    offsets: npt.NDArray[np.int64]  # [N + 1], where instances start
    segment_a_length: npt.NDArray[np.uint16]  # [N], tokens of type 0: [CLS] A [SEP]


def gather_pairs(
    tokens: npt.NDArray[np.unsignedinteger], pairs: Pairs, cls_id: int, sep_id: int
) -> PackedPairs:
    """[CLS] A [SEP] B [SEP] of each pair, end to end.

    Args:
        tokens: Tokens of the bucket's documents end to end, in the documents' order.
        pairs: Spans of `tokens`; some 10,000 a call keep memory small.
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
    """
    a_length, b_length = pairs.a_stop - pairs.a_start, pairs.b_stop - pairs.b_start
    offsets = np.zeros(len(pairs) + 1, np.int64)
    np.cumsum(a_length + b_length + NUM_SPECIAL_TOKENS, out=offsets[1:])
    segment_a_length = (a_length + 2).astype(np.uint16)
    spans = (pairs.a_start, pairs.a_stop, pairs.b_start, pairs.b_stop)
    if compiled.loops:
        input_ids = compiled.gather_pairs(tokens, spans, cls_id, sep_id, offsets)
        return PackedPairs(input_ids, offsets, segment_a_length)
    cls, sep = np.array([cls_id], tokens.dtype), np.array([sep_id], tokens.dtype)
    parts = [tokens[:0]]
    for a_start, a_stop, b_start, b_stop in zip(*spans, strict=True):
        parts += [cls, tokens[a_start:a_stop], sep, tokens[b_start:b_stop], sep]
    return PackedPairs(np.concatenate(parts), offsets, segment_a_length)
