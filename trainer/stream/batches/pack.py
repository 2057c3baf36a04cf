"""Packs instances of blocks into the micro-batches that the model takes, without padding.

B instances, T tokens, M masked positions of a micro-batch; S length of a padded row.
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

# For each column: the narrow type in which steps keep it, and the type that models take.
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
"""The type of each column of a micro-batch that models take."""

_POSITIONS = np.arange(2**16, dtype=np.uint16)


@dataclass(frozen=True)
class MicroBatch(PackedInputs):
    """Instances of one step, one after another, with what the model has to predict.

    Of the tokens to predict, some 80 % show [MASK], 10 % a random token, and 10 % their original
    token (BERT paper, section 3.1). All of them are called masked here.

    Columns have narrow types, 5 bytes per token; `to_device` widens them to `DEVICE_DTYPES`. An
    empty micro-batch has B = T = M = 0.

    Example:
        Sequence b holds the tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1:

        ```python
        first = batch.input_ids[: batch.cu_seqlens[1]]  # such as [CLS] A [SEP] B [SEP], masked
        original = batch.input_ids.int().clone()
        original[batch.masked_positions.long()] = batch.masked_labels.int()
        ```

    Attributes:
        input_ids: Token ids, already masked, uint16 [T]; uint32 for vocabularies over 65,536.
        token_type_ids: 0 in [CLS] A [SEP] and 1 in B [SEP], uint8 [T].
        position_ids: Number of each token in its sequence, from 0, uint16 [T].
        cu_seqlens: Where each sequence begins, and where the last one ends, int32 [B+1].
        max_seqlen: Number of tokens of the longest sequence.
        masked_positions: Indices of the masked tokens among the T tokens, int32 [M]. Tokens to
            predict that show their original token are among these.
        masked_labels: The original ids of the masked tokens, of the type of `input_ids` [M].
        is_random_next: True for instances in which B does not follow A in the text, bool [B].
    """

    masked_positions: Tensor
    masked_labels: Tensor
    is_random_next: Tensor


def empty_micro_batch() -> MicroBatch:
    """Returns a micro-batch without instances.

    A rank that has fewer micro-batches in a step than other ranks adds empty ones.
    """
    columns = {
        name: torch.zeros(int(name == "cu_seqlens"), dtype=dtype)
        for name, (dtype, _) in _DTYPES.items()
    }
    return MicroBatch(**columns, max_seqlen=0)


def to_device(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Returns the micro-batch on a device, in the types that models take: `DEVICE_DTYPES`.

    Copies from pinned memory are asynchronous: keep `batch` until something that was computed from
    the result has been read back.
    """

    def move(name: str) -> Tensor:
        column: Tensor = getattr(batch, name)
        return column.to(device, non_blocking=True).to(DEVICE_DTYPES[name])

    return MicroBatch(**{name: move(name) for name in DEVICE_DTYPES}, max_seqlen=batch.max_seqlen)


def pack_micro_batches(
    block: Block, cuts: Sequence[tuple[int, int]], pin_memory: bool = False
) -> list[MicroBatch]:
    """Returns ranges of rows of a block as micro-batches.

    The columns of all micro-batches are made together, and then cut into views.

    Args:
        block: The instances.
        cuts: For each micro-batch its first row, and one past its last row. Each begins where the
            one before it ends.
        pin_memory: Whether to put the columns into pinned memory, from which a GPU can copy.
    """
    if not cuts:
        return []
    firsts, lasts = np.array(cuts, np.int64).T
    assert np.array_equal(firsts[1:], lasts[:-1]), f"{cuts} are not one after another"
    block = block.slice(cuts[0][0], cuts[-1][1])
    bounds = np.array([*firsts, lasts[-1]]) - firsts[0]
    num_instances = np.diff(bounds)
    num_tokens = np.diff(block.offsets[bounds])
    num_masked = np.diff(block.masked_offsets[bounds])

    starts = block.offsets[:-1]
    lengths = block.lengths
    # A token's index minus the index of its sequence's first token. Both may exceed 16 bits, but
    # the difference does not, and unsigned numbers wrap around.
    indices = np.resize(_POSITIONS, block.num_tokens)
    position_ids = indices - np.repeat(starts.astype(np.uint16), lengths)
    token_type_ids = (position_ids >= np.repeat(block.segment_a_length, lengths)).view(np.uint8)
    # Where each sequence begins, counted from the start of its micro-batch.
    batch_starts = starts - np.repeat(block.offsets[bounds[:-1]], num_instances)
    cu_seqlens = np.insert(batch_starts, bounds[1:], num_tokens)
    masked_positions = block.masked_lm_positions + np.repeat(batch_starts, block.masked_lengths)

    def split(values: Array, counts: Array) -> Sequence[Tensor]:
        """Cuts a column into one view per micro-batch."""
        tensor = torch.from_numpy(values)
        if pin_memory:
            tensor = tensor.pin_memory()
        return tensor.split_with_sizes(counts.tolist())

    columns = zip(
        split(block.input_ids, num_tokens),
        split(token_type_ids, num_tokens),
        split(position_ids, num_tokens),
        split(cu_seqlens, num_instances + 1),
        [int(lengths[first:last].max(initial=0)) for first, last in pairwise(bounds)],
        split(masked_positions, num_masked),
        split(block.masked_lm_ids, num_masked),
        split(block.is_random_next, num_instances),
        strict=True,
    )
    return [MicroBatch(*values) for values in columns]


def pad_micro_batch(batch: MicroBatch, seq_len: int) -> dict[str, Tensor]:
    """Returns a micro-batch as padded rows, which `transformers.BertForPreTraining` takes.

    Example:
        ```python
        for batch in step.micro_batches:
            loss = model(**pad_micro_batch(batch, 128)).loss
        ```

    Args:
        batch: B instances of at most `seq_len` tokens, on the CPU.
        seq_len: Length S of the rows.

    Returns:
        Tensors by the names of transformers' arguments, all int64: `input_ids`, `attention_mask`
            and `token_type_ids` [B, S], which are 0 at padding; `labels` [B, S], which are -100 at
            tokens that are not masked; and `next_sentence_label` [B], which is 1 if B is random.
    """
    num_instances = len(batch.is_random_next)
    lengths = batch.cu_seqlens.diff()
    row_starts = torch.arange(num_instances, dtype=torch.int64) * seq_len - batch.cu_seqlens[:-1]
    indices = torch.arange(len(batch.input_ids)) + row_starts.repeat_interleave(lengths)
    padded = torch.zeros((3, num_instances * seq_len), dtype=torch.int64)
    padded[0, indices] = batch.input_ids.long()
    padded[1, indices] = 1
    padded[2, indices] = batch.token_type_ids.long()
    labels = torch.full((num_instances * seq_len,), -100)
    labels[indices[batch.masked_positions]] = batch.masked_labels.long()
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
    """Cuts rows into micro-batches of at most `micro_tokens` tokens, filling each before the next.

    Args:
        offsets: Cumulative tokens of N instances [N+1]; no instance exceeds `micro_tokens`.
        rows: The first row, and one past the last.
        micro_tokens: The most tokens of a micro-batch.

    Returns:
        For each micro-batch its first row, and one past its last.
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
    """Returns as many micro-batches as `cut_micro_batches`, with the largest as small as possible.

    This is rule 5 of docs/order.md. If each micro-batch were filled before the next, the last could
    be small, and still need as many kernels and reductions as a full one. And after each
    micro-batch ranks wait for the slowest of them, so equal sizes are faster for all.

    Args:
        offsets: Cumulative tokens of N instances, integers [N+1]; none exceeds `micro_tokens`.
        rows: The first row, and one past the last.
        micro_tokens: The most tokens of a micro-batch.

    Returns:
        For each micro-batch its first row, and one past its last.
    """
    first, stop = rows
    row_offsets = offsets[first : stop + 1].tolist()  # bisect reads a list ten times as fast
    all_rows = (0, stop - first)
    cuts = cut_micro_batches(row_offsets, all_rows, micro_tokens)
    if len(cuts) > 1:
        # Bisects for the smallest limit that needs no more micro-batches.
        mean_tokens = (row_offsets[-1] - row_offsets[0]) // len(cuts)
        low = max(mean_tokens, int(np.diff(row_offsets).max()))
        high = micro_tokens
        while low < high:
            limit = (low + high) // 2
            smaller_cuts = cut_micro_batches(row_offsets, all_rows, limit)
            if len(smaller_cuts) > len(cuts):
                low = limit + 1
            else:
                cuts = smaller_cuts
                high = limit
    return [(first + start, first + stop) for start, stop in cuts]
