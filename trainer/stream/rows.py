"""Rows of many blocks brought together, and what follows from their lengths: in numpy, or compiled if that is there.

Both give the same values; trainer/_rows.c is the compiled one, for which `tokenizer.compiled` is asked. May import
numpy, pyarrow, pipeline.shards and tokenizer.compiled. N rows in R runs, T tokens, M masked positions.
"""

from functools import lru_cache

import numpy as np
import pyarrow as pa

from pipeline.shards.block import Array
from tokenizer.compiled import load

COMPILED = load("trainer._rows")


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


def fill_token_columns(offsets: Array, segment_a_length: Array, token_type_ids: Array, position_ids: Array) -> None:
    """What follows of the lengths of instances.

    Args:
        offsets: [N+1] int32, from 0.
        segment_a_length: [N] uint16.
        token_type_ids: Receives 0 for segment A and 1 for the rest, [T] uint8.
        position_ids: Receives places counted from each instance's start, [T] uint16.
    """
    if COMPILED is not None:
        COMPILED.fill_token_columns(offsets, segment_a_length, token_type_ids, position_ids)
        return
    lengths = offsets[1:] - offsets[:-1]
    segments = np.empty((len(lengths), 2), np.int64)
    segments[:, 0] = segment_a_length
    segments[:, 1] = lengths - segment_a_length
    token_type_ids[:] = np.repeat(np.arange(segments.size, dtype=np.uint8) & 1, segments.ravel())
    starts = np.repeat(offsets[:-1].astype(np.uint16), lengths)  # modulo 2^16, as the difference is below that
    np.subtract(_count_to(len(position_ids)), starts, out=position_ids)


def fill_masked_positions(offsets: Array, masked_offsets: Array, positions: Array, into: Array) -> None:
    """Positions [M] uint16 inside instances as positions into all tokens, [M] int32."""
    if COMPILED is not None:
        COMPILED.fill_masked_positions(offsets, masked_offsets, positions, into)
        return
    np.add(np.repeat(offsets[:-1], masked_offsets[1:] - masked_offsets[:-1]), positions, out=into)


@lru_cache(maxsize=1)
def _ascending(size: int) -> Array:
    return np.arange(size, dtype=np.int32).astype(np.uint16)


def _count_to(count: int) -> Array:
    """The numbers 0 to count - 1 modulo 2^16, which are made for a power of two and kept."""
    return _ascending(1 << max(0, count - 1).bit_length())[:count]
