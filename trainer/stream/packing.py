"""Packed micro-batches: what the model takes, made of slices of blocks. May import torch, numpy, pipeline.shards.

B instances, T tokens, M masked positions of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.shards.block import Array, Block


@dataclass(frozen=True)
class MicroBatch:
    """Instances one after another without padding. An empty one has B = T = M = 0.

    What there is one of for each token is int32, as embeddings take and half the memory that int64 asks for.

    Attributes:
        input_ids: [T] int32; masked already.
        cu_seqlens: [B+1] int32; instance b is tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1.
        token_type_ids: [T] int32; 0 for [CLS] A [SEP], 1 for B [SEP].
        position_ids: [T] int32; counted from each instance's [CLS].
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
        input_ids=torch.zeros(0, dtype=torch.int32),
        cu_seqlens=torch.zeros(1, dtype=torch.int32),
        token_type_ids=torch.zeros(0, dtype=torch.int32),
        position_ids=torch.zeros(0, dtype=torch.int32),
        masked_positions=torch.zeros(0, dtype=torch.int64),
        masked_labels=torch.zeros(0, dtype=torch.int64),
        is_random_next=torch.zeros(0, dtype=torch.int64),
        max_seqlen=0,
    )


def pack_micro_batches(block: Block, cuts: Sequence[tuple[int, int]]) -> list[MicroBatch]:
    """Stretches [start, stop) of a block's instances as micro-batches.

    Every column is made once for the whole block, and each micro-batch is a view of it where nothing has to be
    counted anew from the micro-batch's start.
    """
    starts, lengths = block.offsets[:-1], block.offsets[1:] - block.offsets[:-1]
    segments = np.empty((len(lengths), 2), np.int32)
    segments[:, 0] = block.segment_a_length
    segments[:, 1] = lengths - block.segment_a_length
    kinds = np.zeros(segments.size, np.int32)
    kinds[1::2] = 1
    position_ids = np.repeat(starts, lengths)
    np.subtract(_count_to(block.num_tokens), position_ids, out=position_ids)
    masked_starts = np.repeat(starts, block.masked_offsets[1:] - block.masked_offsets[:-1])
    columns = _Columns(
        input_ids=torch.from_numpy(block.input_ids.astype(np.int32)),
        token_type_ids=torch.from_numpy(np.repeat(kinds, segments.ravel())),
        position_ids=torch.from_numpy(position_ids),
        masked_positions=torch.from_numpy(np.add(masked_starts, block.masked_lm_positions, dtype=np.int64)),
        masked_labels=torch.from_numpy(block.masked_lm_ids.astype(np.int64)),
        is_random_next=torch.from_numpy(block.is_random_next.astype(np.int64)),
    )
    return [_cut_columns(block, lengths, columns, start, stop) for start, stop in cuts]


def pad_micro_batch(batch: MicroBatch, seq_len: int) -> dict[str, Tensor]:
    """The same instances as rows of seq_len tokens, as `transformers.BertForPreTraining` takes them; all int64.

    Returns:
        input_ids, attention_mask and token_type_ids [B, S] with 0 for padding, labels [B, S] with -100 where nothing
        is masked, next_sentence_label [B].
    """
    num_instances = len(batch.is_random_next)
    lengths = batch.cu_seqlens.diff()
    row_starts = torch.arange(num_instances, dtype=torch.int64) * seq_len - batch.cu_seqlens[:-1]
    places = torch.arange(len(batch.input_ids)) + row_starts.repeat_interleave(lengths)
    padded = torch.zeros((3, num_instances * seq_len), dtype=torch.int64)
    padded[0, places] = batch.input_ids.long()
    padded[1, places] = 1
    padded[2, places] = batch.token_type_ids.long()
    labels = torch.full((num_instances * seq_len,), -100)
    labels[places[batch.masked_positions]] = batch.masked_labels
    input_ids, attention_mask, token_type_ids = padded.view(3, num_instances, seq_len)
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "labels": labels.view(num_instances, seq_len),
        "next_sentence_label": batch.is_random_next,
    }


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


class _Columns(NamedTuple):
    """Those of a whole block; masked_positions count from its first token."""

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    masked_positions: Tensor
    masked_labels: Tensor
    is_random_next: Tensor


def _cut_columns(block: Block, lengths: Array, columns: _Columns, start: int, stop: int) -> MicroBatch:
    first = int(block.offsets[start])
    tokens = slice(first, int(block.offsets[stop]))
    masked = slice(int(block.masked_offsets[start]), int(block.masked_offsets[stop]))
    return MicroBatch(
        input_ids=columns.input_ids[tokens],
        cu_seqlens=torch.from_numpy(block.offsets[start : stop + 1] - np.int32(first)),
        token_type_ids=columns.token_type_ids[tokens],
        position_ids=columns.position_ids[tokens],
        masked_positions=columns.masked_positions[masked] - first if first else columns.masked_positions[masked],
        masked_labels=columns.masked_labels[masked],
        is_random_next=columns.is_random_next[start:stop],
        max_seqlen=int(lengths[start:stop].max(initial=0)),
    )


@lru_cache(maxsize=1)
def _ascending(size: int) -> Array:
    return np.arange(size, dtype=np.int32)


def _count_to(count: int) -> Array:
    """The numbers 0 to count - 1, which are made for a power of two and kept."""
    return _ascending(1 << max(0, count - 1).bit_length())[:count]
