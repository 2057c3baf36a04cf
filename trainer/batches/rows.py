"""Rows of many blocks brought together, and what follows from their lengths.

What is computed here is the definition; trainer/batches/_rows.c, where it is built
(`tokenizer.compiled`), does the same, sooner. N rows in R runs, K blocks, C micro-batches, T
tokens, M masked positions.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.shards.block import Array, Block
from tokenizer.compiled import load

COMPILED = load("trainer.batches._rows")

_LISTS = {
    "input_ids": ("offsets", "lengths"),
    "masked_lm_positions": ("masked_offsets", "masked_lengths"),
    "masked_lm_ids": ("masked_offsets", "masked_lengths"),
}
"""Columns of lists, and the offsets and lengths of each."""

_FLAT = ("segment_a_length", "is_random_next", "document_a", "document_b")


def gather_rows(blocks: Sequence[Block], which: Array, starts: Array, stops: Array) -> Block:
    """Rows starts to stops - 1 [R] of blocks `which` [R], one run after another.

    The blocks are laid side by side first, so that what steps take of hundreds of them, often one
    row of each, is gathered by one call a column.
    """
    before = np.cumsum([0, *(block.num_instances for block in blocks)])
    first, last = before[which] + starts, before[which] + stops
    counts = stops - starts
    rows = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    found = {
        name: np.concatenate([getattr(block, name) for block in blocks])[rows] for name in _FLAT
    }
    for name, (offsets, lengths) in _LISTS.items():
        counts = np.concatenate([getattr(block, lengths) for block in blocks])
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        values = np.concatenate([getattr(block, name) for block in blocks])
        found[offsets] = np.empty(len(rows) + 1, np.int32)
        found[name] = np.empty(int((ends[last] - ends[first]).sum()), values.dtype)
        gather_lists(first, last, ends * values.itemsize, values, found[offsets], found[name])
    return Block(**found)


def gather_lists(
    first: Array, last: Array, offsets: Array, values: Array, into_offsets: Array, into: Array
) -> None:
    """Lists first to last - 1 [R] int64 of a column, one run after another.

    List n is the bytes offsets[n] to offsets[n + 1] - 1 of values of 2 or 4 bytes. Offsets [N+1]
    int32 from 0, and values, are put into the last two.
    """
    if COMPILED is not None:
        COMPILED.gather_lists(first, last, offsets, values, values.itemsize, into_offsets, into)
        return
    row = place = 0
    into_offsets[0] = 0
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        bounds = offsets[start : stop + 1] // values.itemsize
        moved = bounds - bounds[0] + place
        into_offsets[row : row + len(moved)] = moved
        into[place : moved[-1]] = values[bounds[0] : bounds[-1]]
        row, place = row + stop - start, int(moved[-1])


def make_columns(block: Block, firsts: Array, lasts: Array) -> tuple[Array, ...]:
    """What follows of the lengths in micro-batches, instances firsts to lasts - 1 [C] int64.

    Each begins where the one before ends; outside of them columns are undefined.

    Returns:
        token_type_ids [T] uint8, 0 for segment A and 1 for the rest; position_ids [T] uint16 in the
        instance; masked_positions [M] int32 in the micro-batch; cu_seqlens [N+C] int32, of each
        micro-batch from 0 to its tokens; tokens of the longest instance [C] int32.
    """
    into = (
        np.empty(len(block.input_ids), np.uint8),
        np.empty(len(block.input_ids), np.uint16),
        np.empty(len(block.masked_lm_ids), np.int32),
        np.empty(int((lasts - firsts + 1).sum()), np.int32),
        np.empty(len(firsts), np.int32),
    )
    lengths = block.offsets, block.segment_a_length, block.masked_offsets, block.masked_lm_positions
    fill = _fill_columns if COMPILED is None else COMPILED.fill_columns
    fill(*lengths, firsts, lasts, *into)
    return into


def _fill_columns(
    offsets: Array,
    segments: Array,
    masked_offsets: Array,
    positions: Array,
    firsts: Array,
    lasts: Array,
    *into: Array,
) -> None:
    types, places, masked_positions, cu_seqlens, longest = into
    for cut, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        place = first - firsts[0] + cut
        starts = offsets[first : last + 1] - offsets[first]
        cu_seqlens[place : place + len(starts)] = starts
        longest[cut] = np.diff(starts).max(initial=0)
        for row, start in enumerate(starts[:-1], first):
            tokens, masked = slice(*offsets[row : row + 2]), slice(*masked_offsets[row : row + 2])
            places[tokens] = np.arange(tokens.stop - tokens.start)
            types[tokens] = places[tokens] >= segments[row]
            masked_positions[masked] = positions[masked] + start
