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


def gather_pairs(tokens: npt.NDArray[np.unsignedinteger], pairs: Pairs, cls_id: int, sep_id: int) -> PackedPairs:
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
    if compiled.loops:
        spans = (pairs.a_start, pairs.a_stop, pairs.b_start, pairs.b_stop)
        input_ids = compiled.gather_pairs(tokens, spans, cls_id, sep_id, offsets)
        return PackedPairs(input_ids, offsets, segment_a_length)
    begins, middles = offsets[:-1], offsets[:-1] + 1 + a_length
    # Two runs an instance, [CLS] A and [SEP] B [SEP]: copied with the tokens around A and B, then overwritten.
    run_starts = np.stack([pairs.a_start - 1 - begins, pairs.b_start - 1 - middles], axis=1).ravel()
    run_lengths = np.stack([a_length + 1, b_length + 2], axis=1).ravel()
    index = np.int32 if len(tokens) < 2**31 else np.int64  # half the memory to go through
    sources = np.repeat(run_starts.astype(index), run_lengths)
    sources += np.arange(len(sources), dtype=index)
    input_ids = tokens.take(sources, mode="clip")
    input_ids[begins] = cls_id
    input_ids[middles] = input_ids[offsets[1:] - 1] = sep_id
    return PackedPairs(input_ids, offsets, segment_a_length)
