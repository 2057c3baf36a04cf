"""Rows of many blocks brought together, and what follows from their lengths: in numpy, or compiled if that is there.

Both give the same values; trainer/stream/_rows.c is the compiled one, for which `tokenizer.compiled` is asked. N rows
in R runs, T tokens, M masked positions.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pipeline.shards.block import Array, Block
from tokenizer.compiled import load
from trainer.stream.order import expand

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
    # Arrow gathers byte strings by one memcpy each, 7 times as fast as slices joined by numpy where runs are short.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    strings = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers, null_count=0)
    rows = expand_runs(first, last)
    _, starts, found = strings.take(pa.array(rows)).buffers()
    np.floor_divide(np.frombuffer(starts, np.int64, len(rows) + 1), values.itemsize, out=into[0], casting="unsafe")
    into[1][:] = np.frombuffer(found or b"", values.dtype, len(into[1]))


def gather_values(first: Array, last: Array, column: Array, into: Array) -> None:
    """Values first to last - 1 of a column, one run [R] after another, into [N]."""
    if COMPILED is not None:
        COMPILED.gather_values(first, last, column, column.itemsize, into)
        return
    into[:] = column[expand_runs(first, last)]


def expand_runs(first: Array, last: Array) -> Array:
    """Every row [N] of runs."""
    counts = last - first
    rows: Array = np.repeat(first - np.cumsum(counts) + counts, counts)
    rows += np.arange(len(rows))
    return rows


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
    offsets, lengths = block.offsets, block.offsets[1:] - block.offsets[:-1]
    segments = np.empty((len(lengths), 2), np.int64)
    segments[:, 0] = block.segment_a_length
    segments[:, 1] = lengths - block.segment_a_length
    into.token_type_ids[:] = np.repeat(np.arange(segments.size, dtype=np.uint8) & 1, segments.ravel())
    starts = np.repeat(offsets[:-1].astype(np.uint16), lengths)  # modulo 2^16, as the difference is below that
    np.subtract(_count_to(len(into.position_ids)), starts, out=into.position_ids)
    cut, instance = expand(firsts, lasts)
    begins = offsets.copy()  # of instances in their micro-batches
    begins[firsts[0] : lasts[-1]] -= np.repeat(offsets[firsts], lasts - firsts)
    num_masked = block.masked_offsets[1:] - block.masked_offsets[:-1]
    np.add(np.repeat(begins[:-1], num_masked), block.masked_lm_positions, out=into.masked_positions)
    np.subtract(offsets[instance], offsets[firsts][cut], out=into.cu_seqlens)
    longest = np.maximum.reduceat(np.append(lengths, 0), np.stack([firsts, lasts], axis=1).ravel())[::2]
    into.longest[:] = np.where(firsts < lasts, longest, 0)


@lru_cache(maxsize=1)
def _ascending(size: int) -> Array:
    return np.arange(size, dtype=np.int32).astype(np.uint16)


def _count_to(count: int) -> Array:
    """The numbers 0 to count - 1 modulo 2^16, which are made for a power of two and kept."""
    return _ascending(1 << max(0, count - 1).bit_length())[:count]
