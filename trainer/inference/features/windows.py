"""How a text longer than the model reads is cut into windows so that each token has one vector.

Windows of `size` tokens begin every `stride` tokens, and the last one ends with the text. A token's
vector is that of the window in which the nearer of its two ends is farthest from it; of two such
windows, the earlier one's.
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Window:
    """A stretch of a text's tokens that the model reads together, and those whose vectors it gives.

    Attributes:
        start: First token that is read.
        stop: One after the last.
        keep_start: First token whose vector is taken from here.
        keep_stop: One after the last.
    """

    start: int
    stop: int
    keep_start: int
    keep_stop: int


def cut_windows(num_tokens: int, size: int, stride: int) -> list[Window]:
    """Windows of a text, in order; at least one, which an empty text has too.

    Args:
        num_tokens: How many tokens the text has, without [CLS] and [SEP].
        size: Most tokens of a window.
        stride: From one window's start to the next, at most `size`.
    """
    assert 1 <= stride <= size, f"stride {stride} must be between 1 and the window's {size} tokens"
    last = max(0, num_tokens - size)
    starts = [*range(0, last, stride), last]
    # The token in the middle of what two windows share belongs to the earlier one.
    borders = [
        0,
        *((start + size + following + 1) // 2 for start, following in pairwise(starts)),
        num_tokens,
    ]
    return [
        Window(start, min(start + size, num_tokens), *kept)
        for start, kept in zip(starts, pairwise(borders), strict=True)
    ]
