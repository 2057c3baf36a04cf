"""Packed micro-batches: what the model takes, made of slices of blocks. May import torch, numpy, pipeline.shards.

B instances, T tokens, M masked positions of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.shards.block import Array, Block


class BlockSlice(NamedTuple):
    """Instances start to stop - 1 of a block."""

    block: Block
    start: int
    stop: int


@dataclass(frozen=True)
class MicroBatch:
    """Instances one after another without padding. An empty one has B = T = M = 0.

    Attributes:
        input_ids: [T] int64; masked already.
        cu_seqlens: [B+1] int32; instance b is tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1.
        token_type_ids: [T] int64; 0 for [CLS] A [SEP], 1 for B [SEP].
        position_ids: [T] int64; counted from each instance's [CLS].
        masked_positions: [M] int64 into the T tokens.
        masked_labels: [M] int64; the tokens that stood there.
        is_random_next: [B] int64; 1 where B is not what follows A.
        max_seqlen: Tokens of the longest instance.
    """

    input_ids: Tensor
    cu_seqlens: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    masked_positions: Tensor
    masked_labels: Tensor
    is_random_next: Tensor
    max_seqlen: int


def empty_micro_batch() -> MicroBatch:
    """What a rank adds where others have more micro-batches in a step."""
    return MicroBatch(
        input_ids=torch.zeros(0, dtype=torch.int64),
        cu_seqlens=torch.zeros(1, dtype=torch.int32),
        token_type_ids=torch.zeros(0, dtype=torch.int64),
        position_ids=torch.zeros(0, dtype=torch.int64),
        masked_positions=torch.zeros(0, dtype=torch.int64),
        masked_labels=torch.zeros(0, dtype=torch.int64),
        is_random_next=torch.zeros(0, dtype=torch.int64),
        max_seqlen=0,
    )


def gather_slices(slices: Sequence[BlockSlice]) -> Block:
    """All instances of the slices as one block: at 16 instances each, 4 times as fast as slicing and joining blocks."""
    columns = map(np.concatenate, zip(*(_slice_columns(*part) for part in slices), strict=True))
    input_ids, starts, stops, segment_a, positions, ids, masked_starts, masked_stops, is_random, a, b = columns
    return Block(
        input_ids=input_ids,
        offsets=_join_lengths(stops - starts),
        segment_a_length=segment_a,
        masked_lm_positions=positions,
        masked_lm_ids=ids,
        masked_offsets=_join_lengths(masked_stops - masked_starts),
        is_random_next=is_random,
        document_a=a,
        document_b=b,
    )


def pack_micro_batch(block: Block) -> MicroBatch:
    """The instances of a block as tensors that share nothing with it."""
    starts, stops = block.offsets[:-1], block.offsets[1:]
    lengths = stops - starts
    segments = np.empty((len(lengths), 2), np.int64)
    segments[:, 0] = block.segment_a_length
    segments[:, 1] = lengths - block.segment_a_length
    position_ids = np.arange(block.num_tokens)
    position_ids -= np.repeat(starts, lengths)
    masked_starts = np.repeat(starts, block.masked_offsets[1:] - block.masked_offsets[:-1])
    return MicroBatch(
        input_ids=_int64(block.input_ids),
        cu_seqlens=torch.from_numpy(block.offsets.astype(np.int32)),
        token_type_ids=torch.from_numpy(np.repeat(np.arange(segments.size) % 2, segments.ravel())),
        position_ids=torch.from_numpy(position_ids),
        masked_positions=_int64(masked_starts + block.masked_lm_positions),
        masked_labels=_int64(block.masked_lm_ids),
        is_random_next=_int64(block.is_random_next),
        max_seqlen=int(lengths.max(initial=0)),
    )


def cut_micro_batches(offsets: Array, micro_tokens: int) -> list[tuple[int, int]]:
    """Rule 5: consecutive instances [start, stop) of at most micro_tokens tokens, each cut as late as it can be.

    Args:
        offsets: [N+1], cumulative tokens of the instances from 0; none is longer than micro_tokens.
        micro_tokens: Tokens at most.
    """
    cuts = []
    start, end = 0, len(offsets) - 1
    while start < end:
        stop = int(np.searchsorted(offsets, offsets[start] + micro_tokens, side="right")) - 1
        assert stop > start, f"instance {start} is longer than {micro_tokens} tokens"
        cuts.append((start, stop))
        start = stop
    return cuts


def _slice_columns(block: Block, start: int, stop: int) -> tuple[Array, ...]:
    offsets, masked_offsets = block.offsets, block.masked_offsets
    rows, ends = slice(start, stop), slice(start + 1, stop + 1)
    tokens, masked = slice(offsets[start], offsets[stop]), slice(masked_offsets[start], masked_offsets[stop])
    return (
        block.input_ids[tokens],
        offsets[rows],
        offsets[ends],
        block.segment_a_length[rows],
        block.masked_lm_positions[masked],
        block.masked_lm_ids[masked],
        masked_offsets[rows],
        masked_offsets[ends],
        block.is_random_next[rows],
        block.document_a[rows],
        block.document_b[rows],
    )


def _join_lengths(lengths: Array) -> Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _int64(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
