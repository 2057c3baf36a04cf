"""The compiled loops of pairs and masking, where this installation has them: plain arrays in and out.

pairs.py and masking.py hold the definition and its docstrings; every function here gives the same
arrays, sooner.

Shapes: D documents, S sentences, R uses of documents, N pairs or instances, T packed tokens, M
masked positions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenizer.compiled import load

loops: Any = load("pipeline.instances._instances")
"""The compiled module, or None where the Python path is to be used."""

Ids = npt.NDArray[np.unsignedinteger]
Offsets = npt.NDArray[np.int64]
Columns = tuple[npt.NDArray[Any], ...]


def make_pairs(
    bounds: npt.NDArray[np.integer],
    firsts: npt.NDArray[np.integer],
    rows: Sequence[int],
    seeds: Sequence[int],
    max_tokens: int,
    short_seq_prob: float,
    balanced_tokens: int | None,
) -> Columns:
    """The columns of pipeline.instances.pairs.Pairs of the documents `rows`, in their order.

    bounds [S + 1] are the first token of each sentence and the number of tokens, firsts [D + 1] the
    first sentence of each document and S; for an exact balance, balanced_tokens are those of all
    rows.

    Raises:
        ValueError: The arrays do not fit each other.
    """
    uses = np.asarray(rows, np.int64)
    starts = _aligned(firsts, np.int64)
    room = int((starts[1:] - starts[:-1])[uses].sum())  # a pair takes one sentence at least
    dtypes = (np.int64, np.int64, np.int64, np.int64, np.int32, np.int32, np.bool_)
    columns = [np.empty(room, dtype) for dtype in dtypes]
    digits, num_digits = _split_seeds(seeds)
    wanted = -1 if balanced_tokens is None else balanced_tokens
    count = loops.make_pairs(
        _aligned(bounds, np.int64),
        starts,
        uses,
        digits,
        num_digits,
        max_tokens,
        short_seq_prob,
        wanted,
        *columns,
    )
    a_start, a_stop, b_start, b_stop, document_a, document_b, is_random = (
        column[:count] for column in columns
    )
    return document_a, a_start, a_stop, document_b, b_start, b_stop, is_random


def gather_pairs(tokens: Ids, spans: Columns, cls_id: int, sep_id: int, offsets: Offsets) -> Ids:
    """[T] tokens of the instances of spans (a_start, a_stop, b_start, b_stop), which start at offsets [N + 1].

    Raises:
        ValueError: The arrays do not fit each other.
    """
    source = _aligned(tokens, tokens.dtype)
    input_ids = np.empty(int(offsets[-1]), tokens.dtype)
    columns = (_aligned(column, np.int64) for column in spans)
    loops.gather_pairs(
        source, source.itemsize, *columns, cls_id, sep_id, _aligned(offsets, np.int64), input_ids
    )
    return input_ids


def mask_instances(
    input_ids: Ids,
    offsets: Offsets,
    segment_a_length: npt.NDArray[np.uint16],
    counts: Offsets,
    grid_rows: int,
    bases: Sequence[int],
    is_continuation: npt.NDArray[np.bool_] | None,
    mask_id: int,
    vocab_size: int,
) -> tuple[Ids, npt.NDArray[np.uint16], Ids, Offsets]:
    """The columns of pipeline.instances.masking.MaskedRun, in their order.

    grid_rows instances are drawn for at a time, counts [N] positions masked in each. Of bases, 64
    bits for each draw of random words, the last replaces and the others choose.

    Raises:
        ValueError: The arrays do not fit each other, or an id is not in the vocabulary.
    """
    masked_ids = np.array(input_ids)
    most = int(counts.sum())
    masked_offsets = np.empty(len(offsets), np.int64)
    positions, labels = np.empty(most + 1, np.uint16), np.empty(most, input_ids.dtype)
    continues = np.zeros(0, np.bool_) if is_continuation is None else is_continuation
    num_masked = loops.mask_instances(
        masked_ids,
        masked_ids.itemsize,
        _aligned(offsets, np.int64),
        _aligned(segment_a_length, np.uint16),
        _aligned(counts, np.int64),
        grid_rows,
        np.array(bases, np.uint64),
        _aligned(continues, np.bool_),
        mask_id,
        vocab_size,
        masked_offsets,
        positions,
        labels,
    )
    return masked_ids, positions[:num_masked], labels[:num_masked], masked_offsets


def _aligned(values: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    return np.require(values, dtype, ["C", "A"])


def _split_seeds(seeds: Sequence[int]) -> tuple[npt.NDArray[np.uint32], int]:
    """The 32-bit digits of the seeds, lowest first, as many of each as the greatest has; of negative ones as of abs."""
    num_digits = max([1, *(-(-seed.bit_length() // 32) for seed in seeds)])
    data = b"".join(abs(seed).to_bytes(4 * num_digits, "little") for seed in seeds)
    return np.frombuffer(data, "<u4").astype(np.uint32), num_digits
