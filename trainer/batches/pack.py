"""Packed micro-batches: what the model takes, made of slices of blocks.

B instances, T tokens, M masked positions of a micro-batch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.shards.block import Array, Block
from trainer.batches.rows import make_columns
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
    firsts, lasts = np.ascontiguousarray(np.array(cuts, np.int64).T)
    assert np.array_equal(firsts[1:], lasts[:-1]), f"{cuts} are not one after another"
    types, places, masked_positions, cu_seqlens, longest = make_columns(block, firsts, lasts)
    num_instances = lasts - firsts
    num_tokens = block.offsets[lasts] - block.offsets[firsts]
    num_masked = block.masked_offsets[lasts] - block.masked_offsets[firsts]
    first_token, first_masked = block.offsets[firsts[0]], block.masked_offsets[firsts[0]]

    def split(values: Array, first: int, counts: Array) -> Sequence[Tensor]:
        tensor = torch.from_numpy(values[first : first + counts.sum()])
        return (tensor.pin_memory() if pin_memory else tensor).split_with_sizes(counts.tolist())

    columns = zip(
        split(block.input_ids, first_token, num_tokens),
        split(types, first_token, num_tokens),
        split(places, first_token, num_tokens),
        split(cu_seqlens, 0, num_instances + 1),
        longest.tolist(),
        split(masked_positions, first_masked, num_masked),
        split(block.masked_lm_ids, first_masked, num_masked),
        split(block.is_random_next, firsts[0], num_instances),
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
