"""A long context to overlapping windows, and the window in which each piece is seen best.

Rules of google-research/bert run_squad.py, convert_examples_to_features and _check_is_max_context.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Window:
    """Pieces start to start + length - 1 of a context."""

    start: int
    length: int


def cut_windows(num_pieces: int, room: int, stride: int) -> list[Window]:
    """Windows of `room` pieces, each beginning `stride` after the one before, until one reaches the end.

    Of a context without pieces there is none. A stride above the room is cut to it: no piece is passed over.
    """
    windows: list[Window] = []
    start = 0
    while start < num_pieces:
        length = min(room, num_pieces - start)
        windows.append(Window(start, length))
        if start + length == num_pieces:
            break
        start += min(length, stride)
    return windows


def find_best_windows(windows: list[Window], num_pieces: int) -> NDArray[np.int64]:
    """For each piece the index of the window where it has most context, [N].

    Context is the smaller of what is left and right of the piece, plus a hundredth of the window's length; the first
    window wins where it is equal.
    """
    pieces_N = np.arange(num_pieces)
    best_N = np.full(num_pieces, -1, dtype=np.int64)
    most_N = np.full(num_pieces, -np.inf)
    for index, window in enumerate(windows):
        left_N = pieces_N - window.start
        right_N = window.length - 1 - left_N
        context_N = np.minimum(left_N, right_N) + 0.01 * window.length
        is_better_N = (left_N >= 0) & (right_N >= 0) & (context_N > most_N)
        best_N[is_better_N], most_N[is_better_N] = index, context_N[is_better_N]
    return best_N
