"""Rows of many blocks brought together, and what follows from their lengths.

What is written here is the definition; trainer/stream/_rows.c, where it is built (`tokenizer.compiled`),
does the same, sooner. N rows in R runs, T tokens, M masked positions.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.shards.block import Array, Block
from tokenizer.compiled import load

COMPILED = load("trainer.stream._rows")


def gather_lists(first: Array, last: Array, offsets: Array, values: Array, into: tuple[Array, Array]) -> None:
    """Lists first to last - 1 of a column, one run after another.

    Args:
        first: [R] int64.
        last: [R] int64, above first.
        offsets: int64, in bytes; list n is values.view(bytes)[offsets[n]:offsets[n + 1]].
        values: Of all lists, 2 or 4 bytes each; lists that follow each other in a run lie side by side.
        into: Receives offsets [N+1] int32 from 0, and the values.
    """
    if COMPILED is not None:
        COMPILED.gather_lists(first, last, offsets, values, values.itemsize, *into)
        return
    row = place = 0
    into[0][0] = 0
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        bounds = offsets[start : stop + 1] // values.itemsize
        moved = bounds - bounds[0] + place
        into[0][row : row + len(moved)] = moved
        into[1][place : moved[-1]] = values[bounds[0] : bounds[-1]]
        row, place = row + stop - start, int(moved[-1])


def gather_values(first: Array, last: Array, column: Array, into: Array) -> None:
    """Values first to last - 1 of a column, one run [R] after another, into [N]."""
    if COMPILED is not None:
        COMPILED.gather_values(first, last, column, column.itemsize, into)
        return
    row = 0
    for start, stop in zip(first.tolist(), last.tolist(), strict=True):
        into[row : row + stop - start] = column[start:stop]
        row += stop - start


@dataclass(frozen=True)
class Columns:
    """What follows of the lengths of instances, to be filled: C micro-batches, one after another.

    Attributes:
        token_type_ids: [T] uint8; 0 for segment A and 1 for the rest.
        position_ids: [T] uint16; counted from each instance's start.
        masked_positions: [M] int32; counted from the start of the micro-batch.
        cu_seqlens: [N+C] int32; of each micro-batch the offsets of its instances, from 0 to its tokens.
        longest: [C] int32; tokens of the longest instance, 0 of none.
    """

    token_type_ids: Array
    position_ids: Array
    masked_positions: Array
    cu_seqlens: Array
    longest: Array


def fill_columns(block: Block, firsts: Array, lasts: Array, into: Columns) -> None:
    """Fills the columns of micro-batches.

    Args:
        block: N instances; its offsets begin at 0.
        firsts: [C] int64; the first instance of each, which is where the one before ends.
        lasts: [C] int64; one past the last instance of each.
        into: Has room for all tokens of the block; those outside of the micro-batches may be filled or not.
    """
    if COMPILED is not None:
        given = block.offsets, block.segment_a_length, block.masked_offsets, block.masked_lm_positions, firsts, lasts
        filled = into.token_type_ids, into.position_ids, into.masked_positions, into.cu_seqlens, into.longest
        COMPILED.fill_columns(*given, *filled)
        return
    for cut, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
        start = first - firsts[0] + cut
        starts = block.offsets[first : last + 1] - block.offsets[first]
        into.cu_seqlens[start : start + len(starts)] = starts
        into.longest[cut] = np.diff(starts).max(initial=0)
        for instance in range(first, last):
            _fill_instance(block, instance, block.offsets[first], into)


def _fill_instance(block: Block, instance: int, micro_batch_start: int, into: Columns) -> None:
    tokens = slice(*block.offsets[instance : instance + 2])
    masked = slice(*block.masked_offsets[instance : instance + 2])
    into.position_ids[tokens] = np.arange(tokens.stop - tokens.start)
    into.token_type_ids[tokens] = into.position_ids[tokens] >= block.segment_a_length[instance]
    into.masked_positions[masked] = block.masked_lm_positions[masked] + (tokens.start - micro_batch_start)
