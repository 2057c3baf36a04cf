"""Words of a long sentence to windows that fit the model; each word is predicted in one of them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Words that the model reads together, of which some are predicted here.

    Attributes:
        first: The first word that is read.
        last: One after the last word that is read.
        predicted_from: The first word that is predicted.
        predicted_to: One after the last word that is predicted.
    """

    first: int
    last: int
    predicted_from: int
    predicted_to: int


def cut_windows(num_pieces: Sequence[int], room: int, context: int) -> list[Window]:
    """Windows of at most `room` pieces, cut between words, in order.

    Where a window ends inside the sentence its last words, of `context` pieces together at most,
    are only read: the next window predicts them, and reads as much of what it does not predict
    before them. Each word that is predicted so sees the pieces of some `context` on both sides, or
    the sentence's end.

    Args:
        num_pieces: How many pieces each word has, from 1 to `room`.
        room: Pieces of a window at most.
        context: Pieces of overlap on each side at most.
    """
    windows: list[Window] = []
    done = 0
    while done < len(num_pieces):
        first = _reach_back(num_pieces, done, min(context, room - num_pieces[done]))
        last, used = done, sum(num_pieces[first:done])
        while last < len(num_pieces) and used + num_pieces[last] <= room:
            used += num_pieces[last]
            last += 1
        end = (
            last
            if last == len(num_pieces)
            else max(done + 1, _reach_back(num_pieces, last, context))
        )
        windows.append(Window(first, last, done, end))
        done = end
    return windows


def _reach_back(num_pieces: Sequence[int], start: int, room: int) -> int:
    """The first of the words before `start` that fit into the room together."""
    while start > 0 and num_pieces[start - 1] <= room:
        start -= 1
        room -= num_pieces[start]
    return start
