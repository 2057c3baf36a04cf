"""Which documents are validation: of each source those with the lowest ids, to a share of tokens.

Neither lengths, passes, weights nor how work is cut change the choice. A copy goes where its
document goes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.tokens.grouped_rows import Rows
from pipeline.tokens.token_parts import ID_BYTES, INDEX_DTYPE, id_keys

LEAST_TOKENS = 20_000  # some 160 instances of 128: below, the loss hangs on single documents
LEAST_SHARE = 20  # LEAST_TOKENS at most as this part of all tokens
MOST_SHARE = 0.1  # of a source's tokens, unless a larger share is asked for
_LOWEST_DTYPE = np.dtype([(name, INDEX_DTYPE[name]) for name in ("high", "low", "tokens")])
LEAST_DOCUMENTS = 4  # two of each split, as a random B comes from another document


@dataclass(frozen=True)
class SourceTotals:
    """Distinct documents of one source: of those in several sources, the first.

    What filters over all documents left out is in `dropped` alone, by reason.
    """

    documents: int = 0
    duplicates: int = 0  # further copies of any document
    cleaned_bytes: int = 0
    tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lowest_ids: list[str] = field(default_factory=list)  # in hex, that validation may take
    lowest_tokens: list[int] = field(default_factory=list)  # tokens of each of these


@dataclass(frozen=True)
class HeldOutSource:
    """What one source gives to validation: its documents up to `last_id`, but those too long."""

    documents: int = 0
    tokens: int = 0
    last_id: str | None = None  # in hex


@dataclass(frozen=True)
class HeldOut:
    """The validation documents: their ids, ascending, 16 bytes each, and what each source gives."""

    ids: bytes
    sources: tuple[HeldOutSource, ...]


def wanted_tokens(total: int, fraction: float, most_tokens: int) -> int:
    """Tokens to hold out: the fraction, or 20,000 where these are at most 5 %."""
    least = min(LEAST_TOKENS, total // LEAST_SHARE)
    return min(most_tokens, max(int(fraction * total), least)) if fraction > 0 else 0


def most_document_tokens(source_tokens: int, fraction: float, most_tokens: int) -> int:
    """The longest document that may be held out: a tenth of its source's tokens, or `fraction`."""
    return min(most_tokens, int(max(MOST_SHARE, fraction) * source_tokens))


def choose_held_out(sources: Sequence[SourceTotals], fraction: float, most_tokens: int) -> HeldOut:
    """The validation documents of a corpus, none where fewer than two can be held out.

    Every source gives its first document, then others until it has given its share of the wanted
    tokens; those that are too long are passed over. At most 10 % of its tokens are taken, or
    `fraction` if that is more, at most `most_tokens` of all sources together.
    """
    num_documents = sum(source.documents for source in sources)
    if num_documents < 2:
        raise ValueError(
            f"the input holds {num_documents} distinct document(s), at least 2 are needed: next"
            " sentence prediction takes a random B from another document of the split; add text"
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


def find_lowest(
    groups: Iterable[Rows], source_tokens: Sequence[int], most_tokens: int
) -> list[Rows]:
    """Of each source the documents with the lowest ids, enough for any share that is held out.

    The groups, of distinct documents, ascend by id; no more of them are read than are needed.
    """
    found: list[Rows] = [np.zeros(0, _LOWEST_DTYPE)] * len(source_tokens)
    waiting = set(range(len(source_tokens)))
    for group in groups:
        for source in sorted(waiting):
            own = group[(group["source"] == source) & (group["tokens"] <= most_tokens)]
            rows = np.concatenate([found[source], own[list(_LOWEST_DTYPE.names or ())]])
            longest = most_document_tokens(source_tokens[source], 0, most_tokens)
            places = np.flatnonzero(rows["tokens"] <= longest)
            sums = np.cumsum(rows["tokens"][places], dtype=np.int64)
            share = most_tokens * source_tokens[source] // max(1, sum(source_tokens))
            most = sums[:1].sum() + share
            number = max(2, int(np.searchsorted(sums, most, side="right")) + 1)
            found[source] = rows
            if number <= len(places):
                found[source] = rows[: places[number - 1] + 1]
                waiting.remove(source)
        if not waiting:
            break
    return found


def is_held_out(rows: Rows, held_out: bytes) -> npt.NDArray[np.bool_]:
    """[D] whether each row, of a document or a copy of one, is held out (`HeldOut.ids`)."""
    return np.isin(id_keys(rows), np.frombuffer(held_out, f"S{ID_BYTES}"))


def split_ids(held_out: bytes) -> list[bytes]:
    """The single ids of `HeldOut.ids`, ascending."""
    return [held_out[start : start + ID_BYTES] for start in range(0, len(held_out), ID_BYTES)]


def _list_documents(
    source: SourceTotals, fraction: float, most_tokens: int
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Ids of documents that may be held out, in hex, and [K] the running sums of their tokens."""
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
    """The sources that give their first document: the shortest ones, while all may be held out."""
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
    """Where there is one only, the shortest that is next in its source too, or none at all."""
    if sum(numbers) >= 2:
        return numbers
    pairs = list(zip([[0, *own.tolist()] for own in sums], numbers, strict=True))
    taken = sum(own[n] for own, n in pairs)
    nexts = [(own[n + 1] - own[n], s) for s, (own, n) in enumerate(pairs) if n + 1 < len(own)]
    if sum(numbers) == 0 or not nexts or taken + min(nexts)[0] > most_tokens:
        return [0] * len(sums)
    return [n + (s == min(nexts)[1]) for s, n in enumerate(numbers)]
