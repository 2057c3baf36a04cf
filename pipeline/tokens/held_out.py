"""Which documents are validation: of each source those with the lowest ids, until it has given its share of tokens.

Pure functions of the distinct documents' totals, so that neither lengths, passes, weights nor how
work is cut change the choice. A copy goes where its document goes: what a part holds is compared
with the ids that are held out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.tokens.dropped_ids import id_keys
from pipeline.tokens.grouped_rows import Rows
from pipeline.tokens.token_parts import ID_BYTES, INDEX_DTYPE

LEAST_TOKENS = 20_000  # some 160 instances of 128: below, the loss hangs on single documents
LEAST_SHARE = 20  # LEAST_TOKENS at most as this part of all tokens
MOST_SHARE = 0.1  # of a source's tokens, unless a larger share is asked for
_LOWEST_DTYPE = np.dtype([(name, INDEX_DTYPE[name]) for name in ("high", "low", "tokens")])
LEAST_DOCUMENTS = 4  # two of each split, as a random B comes from another document


@dataclass(frozen=True)
class SourceTotals:
    """Distinct documents of one source: how many, further copies of any, and their text and tokens.

    A document that several sources hold belongs to the first of them; in the others it is a copy.
    What filters over all documents left out is in `dropped` alone, by reason.

    Attributes:
        lowest_ids: Ids of the documents that validation may take, in hex, ascending.
        lowest_tokens: Tokens of each of these.
    """

    documents: int = 0
    duplicates: int = 0
    cleaned_bytes: int = 0
    tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lowest_ids: list[str] = field(default_factory=list)
    lowest_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class HeldOutSource:
    """What one source gives to validation.

    All its documents up to `last_id`, in hex, are held out but those that are too long
    (`most_document_tokens`); copies count for the first source.
    """

    documents: int = 0
    tokens: int = 0
    last_id: str | None = None


@dataclass(frozen=True)
class HeldOut:
    """The validation documents: all their ids, ascending, 16 bytes each, and what each source gives."""

    ids: bytes
    sources: tuple[HeldOutSource, ...]


def wanted_tokens(total: int, fraction: float, most_tokens: int) -> int:
    """Tokens to hold out: their fraction, at least 20,000 where these are at most 5 %, and at most `most_tokens`."""
    least = min(LEAST_TOKENS, total // LEAST_SHARE)
    return min(most_tokens, max(int(fraction * total), least)) if fraction > 0 else 0


def most_document_tokens(source_tokens: int, fraction: float, most_tokens: int) -> int:
    """Tokens of the longest document of a source that may be held out: a tenth of its own, or `fraction` if more."""
    return min(most_tokens, int(max(MOST_SHARE, fraction) * source_tokens))


def choose_held_out(sources: Sequence[SourceTotals], fraction: float, most_tokens: int) -> HeldOut:
    """The validation documents of a corpus, none where fewer than two can be held out.

    Every source gives its first document, then others until it has given its share of the wanted
    tokens; those that are too long are passed over. At most 10 % of its tokens are taken, or
    `fraction` if that is more, at most `most_tokens` of all sources together.

    Raises:
        ValueError: Fewer than two documents in all.
    """
    num_documents = sum(source.documents for source in sources)
    if num_documents < 2:
        raise ValueError(
            f"the input holds {num_documents} distinct document(s), at least 2 are needed: next sentence prediction"
            " takes a random B from another document of the same split; add text"
        )
    if fraction <= 0 or num_documents < LEAST_DOCUMENTS:
        return HeldOut(b"", (HeldOutSource(),) * len(sources))
    listed = [_list_documents(source, fraction, most_tokens) for source in sources]
    numbers = _choose_numbers(sources, [own for _, own in listed], fraction, most_tokens)
    given, chosen = [], list[bytes]()
    for (ids, sums), n in zip(listed, numbers, strict=True):
        given.append(HeldOutSource(n, int(sums[n - 1]), ids[n - 1]) if n else HeldOutSource())
        chosen += map(bytes.fromhex, ids[:n])
    return HeldOut(b"".join(sorted(chosen)), tuple(given))


class LowestRows:
    """The documents with the lowest ids of each source, as many as validation may have to look at.

    How long a document may be is known at the end only. At most nine are over a tenth of their
    source, and one more is the source's first: as long as ten times the longest one is not
    outweighed, more are kept.
    """

    def __init__(self, num_sources: int, most_tokens: int) -> None:
        """Begins with no document, for a validation split of at most so many tokens."""
        self._most_tokens = most_tokens
        self._rows: list[Rows] = [np.zeros(0, _LOWEST_DTYPE)] * num_sources
        self._is_open = np.ones(num_sources, np.bool_)

    def add(self, rows: Rows) -> None:
        """Takes distinct documents, sorted by id, whose ids are above those of before."""
        if not self._is_open.any():
            return
        chosen = rows[self._is_open[rows["source"]] & (rows["tokens"] <= self._most_tokens)]
        for source in np.unique(chosen["source"]).tolist():
            added = chosen[chosen["source"] == source][list(_LOWEST_DTYPE.names or ())]
            own = np.concatenate([self._rows[source], added])
            tokens = own["tokens"].astype(np.int64)
            is_enough = np.cumsum(tokens) - 10 * np.maximum.accumulate(tokens) > self._most_tokens
            self._is_open[source] = not is_enough.any()
            number = len(own) if self._is_open[source] else int(np.argmax(is_enough)) + 1
            self._rows[source] = own[:number].copy()

    def finish(self, tokens: Sequence[int]) -> list[Rows]:
        """Those of each source that its share of the tokens of all sources asks for, whatever share is held out."""
        found = []
        for rows, own_tokens in zip(self._rows, tokens, strict=True):
            longest = most_document_tokens(own_tokens, 0, self._most_tokens)
            places = np.flatnonzero(rows["tokens"] <= longest)
            sums = np.cumsum(rows["tokens"][places], dtype=np.int64)
            most = sums[:1].sum() + self._most_tokens * own_tokens // max(1, sum(tokens))
            number = max(2, int(np.searchsorted(sums, most, side="right")) + 1)
            found.append(rows[: places[number - 1] + 1] if number <= len(places) else rows)
        return found


def is_held_out(rows: Rows, held_out: bytes) -> npt.NDArray[np.bool_]:
    """[D] whether each row, of a document or a copy of one, is of the validation split (`HeldOut.ids`)."""
    if not held_out:
        return np.zeros(len(rows), np.bool_)
    keys, wanted = np.frombuffer(held_out, f"S{ID_BYTES}"), id_keys(rows)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: npt.NDArray[np.bool_] = keys[places] == wanted
    return found


def split_ids(held_out: bytes) -> list[bytes]:
    """The single ids of `HeldOut.ids`, ascending."""
    return [held_out[start : start + ID_BYTES] for start in range(0, len(held_out), ID_BYTES)]


def _list_documents(
    source: SourceTotals, fraction: float, most_tokens: int
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Ids of the documents that may be held out, in hex, and [K] tokens of the first, of the first two, and so on."""
    most = most_document_tokens(source.tokens, fraction, most_tokens)
    pairs = zip(source.lowest_ids, source.lowest_tokens, strict=True)
    short = [(each, tokens) for each, tokens in pairs if tokens <= most]
    short = short[: max(0, source.documents - 2)]
    sums = np.cumsum([tokens for _, tokens in short], dtype=np.int64)
    share = int(max(MOST_SHARE, fraction) * source.tokens)
    number = int(np.searchsorted(sums, share, side="right"))
    return [each for each, _ in short[:number]], sums[:number]


def _choose_numbers(
    sources: Sequence[SourceTotals],
    sums: Sequence[npt.NDArray[np.int64]],
    fraction: float,
    most_tokens: int,
) -> list[int]:
    """How many of the documents of each source that may be held out are."""
    firsts = _choose_firsts(sums, most_tokens)
    rest = most_tokens - sum(int(sums[number][0]) for number in firsts)
    total = sum(source.tokens for source in sources)
    wanted = wanted_tokens(total, fraction, most_tokens)
    numbers = [0] * len(sources)
    for number in firsts:
        own, tokens = sums[number], sources[number].tokens
        within = int(np.searchsorted(own, int(own[0]) + rest * tokens // total, side="right"))
        reached = int(np.searchsorted(own, -(-wanted * tokens // total))) + 1
        numbers[number] = min(within, reached)
    return _at_least_two(sums, numbers, most_tokens)


def _choose_firsts(sums: Sequence[npt.NDArray[Any]], most_tokens: int) -> list[int]:
    """The sources that give their first document: those of the shortest ones, while all may be held out."""
    chosen, taken = [], 0
    firsts = sorted((int(own[0]), number) for number, own in enumerate(sums) if len(own))
    for tokens, number in firsts:
        if taken + tokens <= most_tokens:
            chosen.append(number)
            taken += tokens
    return chosen


def _at_least_two(
    sums: Sequence[npt.NDArray[Any]], numbers: list[int], most_tokens: int
) -> list[int]:
    """One document more, the shortest that is next in its source, where there is one only; none where none may be."""
    if sum(numbers) >= 2:
        return numbers
    taken = sum(int(own[n - 1]) for own, n in zip(sums, numbers, strict=True) if n)
    nexts = [(int(own[n] - (own[n - 1] if n else 0)), s) for s, (own, n) in enumerate(zip(sums, numbers, strict=True))
             if n < len(own)]  # fmt: skip
    if sum(numbers) == 0 or not nexts or taken + min(nexts)[0] > most_tokens:
        return [0] * len(sums)
    return [n + (s == min(nexts)[1]) for s, n in enumerate(numbers)]
