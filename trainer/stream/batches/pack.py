"""Packed micro-batches: what the model takes, made of slices of blocks.

B instances, T tokens, M masked positions of a micro-batch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from pipeline.shards.block import Array, Block
from trainer.model.packed_inputs import PackedInputs

_DTYPES = {
    "input_ids": (torch.uint16, torch.int32),
    "cu_seqlens": (torch.int32, torch.int32),
    "token_type_ids": (torch.uint8, torch.int32),
    "position_ids": (torch.uint16, torch.int32),
    "masked_positions": (torch.int32, torch.int64),
    "masked_labels": (torch.uint16, torch.int64),
    "is_random_next": (torch.bool, torch.int64),
}
DEVICE_DTYPES = {name: wide for name, (_, wide) in _DTYPES.items()}
"""What models take; before it comes the narrow type that steps have."""

_PLACES = np.arange(2**16, dtype=np.uint16)


@dataclass(frozen=True)
class MicroBatch(PackedInputs):
    """Packed instances. An empty one has B = T = M = 0.

    Types are narrow, 5 bytes a token; ids are uint32 for vocabularies over 65,536.

    Attributes:
        masked_positions: [M] into the T tokens.
        masked_labels: [M]; the tokens that stood there.
        is_random_next: [B]; True where B is not what follows A.
    """

    masked_positions: Tensor
    masked_labels: Tensor
    is_random_next: Tensor


def empty_micro_batch() -> MicroBatch:
    """What a rank adds where others have more micro-batches in a step."""
    sizes = {
        name: torch.zeros(int(name == "cu_seqlens"), dtype=dtype)
        for name, (dtype, _) in _DTYPES.items()
    }
    return MicroBatch(**sizes, max_seqlen=0)


def to_device(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """The micro-batch on a device, in the types that models take.

    Copies from pinned memory are asynchronous: keep the batch until something that was computed of
    it has been read back.
    """

    def move(name: str) -> Tensor:
        column: Tensor = getattr(batch, name)
        return column.to(device, non_blocking=True).to(DEVICE_DTYPES[name])

    return MicroBatch(**{name: move(name) for name in DEVICE_DTYPES}, max_seqlen=batch.max_seqlen)


def pack_micro_batches(
    block: Block, cuts: Sequence[tuple[int, int]], pin_memory: bool = False
) -> list[MicroBatch]:
    """Rows [start, stop) of a block as micro-batches, each beginning where the one before it ends.

    All are made together and then cut, so that their tensors are views.
    """
    if not cuts:
        return []
    firsts, lasts = np.array(cuts, np.int64).T
    assert np.array_equal(firsts[1:], lasts[:-1]), f"{cuts} are not one after another"
    block = block.slice(cuts[0][0], cuts[-1][1])
    bounds = np.array([*firsts, lasts[-1]]) - firsts[0]
    starts, lengths, num_instances = block.offsets[:-1], block.lengths, np.diff(bounds)
    num_tokens, num_masked = (np.diff(e[bounds]) for e in (block.offsets, block.masked_offsets))
    # Ids of positions are 16 bits wide: what is above them in the places of tokens falls away.
    places = np.resize(_PLACES, block.num_tokens) - np.repeat(starts.astype(np.uint16), lengths)
    types = (places >= np.repeat(block.segment_a_length, lengths)).view(np.uint8)
    in_batch = starts - np.repeat(block.offsets[bounds[:-1]], num_instances)
    masked_positions = block.masked_lm_positions + np.repeat(in_batch, block.masked_lengths)

    def split(values: Array, counts: Array) -> Sequence[Tensor]:
        tensor = torch.from_numpy(values)
        return (tensor.pin_memory() if pin_memory else tensor).split_with_sizes(counts.tolist())

    columns = zip(
        split(block.input_ids, num_tokens),
        split(types, num_tokens),
        split(places, num_tokens),
        split(np.insert(in_batch, bounds[1:], num_tokens), num_instances + 1),
        [int(lengths[first:last].max(initial=0)) for first, last in pairwise(bounds)],
        split(masked_positions, num_masked),
        split(block.masked_lm_ids, num_masked),
        split(block.is_random_next, num_instances),
        strict=True,
    )
    return [MicroBatch(*each) for each in columns]


def pad_micro_batch(batch: MicroBatch, seq_len: int) -> dict[str, Tensor]:
    """The same instances as rows of seq_len tokens, all int64.

    `transformers.BertForPreTraining` takes them so.

    Returns:
        input_ids, attention_mask and token_type_ids [B, S] with 0 for padding, labels [B, S] with
        -100 where nothing is masked, next_sentence_label [B].
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
    labels[places[batch.masked_positions]] = batch.masked_labels.long()
    input_ids, attention_mask, token_type_ids = padded.view(3, num_instances, seq_len)
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "labels": labels.view(num_instances, seq_len),
        "next_sentence_label": batch.is_random_next.long(),
    }


def cut_micro_batches(
    offsets: Array | Sequence[int], rows: tuple[int, int], micro_tokens: int
) -> list[tuple[int, int]]:
    """Rule 5: rows [start, stop) cut into such of at most micro_tokens tokens, as late as can be.

    Args:
        offsets: [N+1], cumulative tokens of the instances; none is longer than micro_tokens.
        rows: First row, and one past the last.
        micro_tokens: Tokens at most.
    """
    cuts = []
    start, end = rows
    while start < end:
        stop = bisect_right(offsets, offsets[start] + micro_tokens, start, end + 1) - 1
        assert stop > start, f"instance {start} is longer than {micro_tokens} tokens"
        cuts.append((start, min(stop, end)))
        start = stop
    return cuts


def balance_micro_batches(
    offsets: Array, rows: tuple[int, int], micro_tokens: int
) -> list[tuple[int, int]]:
    """As few micro-batches as `cut_micro_batches` makes, of as few tokens at most as that allows.

    The last would else be what is left over: a whole turn of launches and reductions for a stub.
    Ranks of one step wait for the longest of each turn, so that even ones are shorter for all.
    """
    first, num_rows = rows[0], rows[1] - rows[0]
    line = offsets[rows[0] : rows[1] + 1].tolist()  # which bisect reads ten times as fast
    cuts = cut_micro_batches(line, (0, num_rows), micro_tokens)
    low, high = (line[-1] - line[0]) // max(1, len(cuts)), micro_tokens
    if len(cuts) > 1:
        low = max(low, int(np.diff(line).max()))
    while len(cuts) > 1 and low < high:
        limit = (low + high) // 2
        tried = cut_micro_batches(line, (0, num_rows), limit)
        if len(tried) > len(cuts):
            low = limit + 1
        else:
            cuts, high = tried, limit
    return [(first + start, first + stop) for start, stop in cuts]
