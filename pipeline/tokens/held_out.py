"""Chooses the documents that are held out from training, for validation.

Each source gives its documents with the lowest ids, up to a share of its tokens. Ids are hashes, so
this is a random sample. docs/format.md, section 6 has the rules. The choice does not depend on the
lengths of instances, on the number of passes, on the weights of sources, or on how the work is
divided. Copies of a document are in the same split as the document.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.tokens.grouped_rows import Rows
from pipeline.tokens.token_parts import ID_BYTES, INDEX_DTYPE, id_keys

LEAST_TOKENS = 20_000
"""The fewest tokens to hold out, some 160 instances of 128. With fewer, single documents decide the
validation loss."""

LEAST_SHARE = 20
"""LEAST_TOKENS are held out only as far as they are a 20th of all tokens."""

MOST_SHARE = 0.1
"""The largest share of a source's tokens that is held out, unless a larger one is asked for."""

_LOWEST_DTYPE = np.dtype([(name, INDEX_DTYPE[name]) for name in ("high", "low", "tokens")])

LEAST_DOCUMENTS = 4
"""With fewer documents nothing is held out: each split needs two, as a random B is from another."""


@dataclass(frozen=True)
class SourceTotals:
    """Counts of the distinct documents of one source.

    A document that several sources hold counts for the first of them. A document is kept unless
    dropped.ids lists it (`pipeline.tokens.dropped_ids`).

    Attributes:
        documents: Number of distinct documents that are kept.
        duplicates: Number of further copies of any document, whether it is kept or dropped.
        cleaned_bytes: Bytes of the cleaned text of the kept documents.
        tokens: Number of tokens of the kept documents.
        dropped: Number of distinct documents that dropped.ids lists, by reason.
        lowest_ids: Ids in hex of the kept documents with the lowest ids, ascending. They are as
            many as may be needed for validation (`find_lowest`).
        lowest_tokens: For each of `lowest_ids` the number of the document's tokens.
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
    """The documents of one source that are held out for validation.

    Attributes:
        documents: Number of these documents.
        tokens: Number of their tokens.
        last_id: The highest of their ids, in hex; None if there are none. A document of the source
            is held out if its id is not higher than this, and it has at most
            `most_document_tokens`.
    """

    documents: int = 0
    tokens: int = 0
    last_id: str | None = None


@dataclass(frozen=True)
class HeldOut:
    """The validation documents.

    Attributes:
        ids: The ids of all validation documents, ascending and end to end, 16 bytes each.
        sources: For each source, by its number, the documents that are held out of it.
    """

    ids: bytes
    sources: tuple[HeldOutSource, ...]


def wanted_tokens(total: int, fraction: float, most_tokens: int) -> int:
    """Returns the number of tokens to hold out of all sources together.

    It is `fraction` of all tokens, or a minimum if that is more. The minimum is 20,000 tokens, or a
    20th of all tokens if that is less. The result is never more than `most_tokens`.

    Args:
        total: The number of tokens of all sources.
        fraction: The share of tokens to hold out; 0 holds out nothing.
        most_tokens: The most tokens to hold out.
    """
    if fraction <= 0:
        return 0
    least = min(LEAST_TOKENS, total // LEAST_SHARE)
    return min(most_tokens, max(int(fraction * total), least))


def most_document_tokens(source_tokens: int, fraction: float, most_tokens: int) -> int:
    """Returns the most tokens that a document may have to be held out.

    It is a tenth of the tokens of the document's source. If `fraction` is larger than a tenth, it
    is this share instead. It is never more than `most_tokens`.

    Args:
        source_tokens: The number of tokens of the source.
        fraction: The share of tokens to hold out.
        most_tokens: The most tokens to hold out from all sources.
    """
    return min(most_tokens, int(max(MOST_SHARE, fraction) * source_tokens))


def choose_held_out(sources: Sequence[SourceTotals], fraction: float, most_tokens: int) -> HeldOut:
    """Chooses the validation documents of a corpus (docs/format.md, section 6).

    Every source gives the document with its lowest id, and then those with the next ids until it
    has given its share of the tokens to hold out. Documents with more than `most_document_tokens`
    are passed over. Sources whose first document would exceed `most_tokens` give nothing. Nothing
    at all is held out if the corpus has fewer than 4 documents, or if only one document could be
    held out.

    Args:
        sources: The counts of all sources.
        fraction: The share of tokens to hold out. A source gives at most this share of its tokens,
            or 10 % if that is more.
        most_tokens: The most tokens to hold out of all sources together.

    Raises:
        ValueError: The corpus has fewer than two distinct documents.
    """
    num_documents = sum(source.documents for source in sources)
    if num_documents < 2:
        raise ValueError(
            f"the input holds {num_documents} distinct document(s), at least 2 are needed; add"
            " text, or say how it is divided into documents (--format)"
        )
    if fraction <= 0 or num_documents < LEAST_DOCUMENTS:
        return HeldOut(b"", (HeldOutSource(),) * len(sources))
    listed = [_list_documents(source, fraction, most_tokens) for source in sources]
    sums_of_sources = [sums for _, sums in listed]
    numbers = _choose_numbers(sources, sums_of_sources, fraction, most_tokens)

    held_out_sources: list[HeldOutSource] = []
    chosen: list[bytes] = []
    for (ids, sums), number in zip(listed, numbers, strict=True):
        if number == 0:
            held_out_sources.append(HeldOutSource())
            continue
        held_out_sources.append(HeldOutSource(number, int(sums[number - 1]), ids[number - 1]))
        chosen += map(bytes.fromhex, ids[:number])
    return HeldOut(b"".join(sorted(chosen)), tuple(held_out_sources))


def find_lowest(
    groups: Iterable[Rows], source_tokens: Sequence[int], most_tokens: int
) -> list[Rows]:
    """Finds the documents with the lowest ids of each source, from which `choose_held_out` chooses.

    They are enough for any fraction that is held out of at most `most_tokens` tokens. Groups are
    read only until every source has enough documents.

    Args:
        groups: Rows of distinct documents, in groups that ascend by id.
        source_tokens: The number of tokens of each source.
        most_tokens: The most tokens that may be held out of all sources together.

    Returns:
        For each source, rows with the columns high and low (the halves of the id) and tokens,
        sorted by id.
    """
    lowest: list[Rows] = [np.zeros(0, _LOWEST_DTYPE)] * len(source_tokens)
    columns = list(_LOWEST_DTYPE.names or ())
    unfinished = set(range(len(source_tokens)))
    for group in groups:
        for source in sorted(unfinished):
            is_candidate = (group["source"] == source) & (group["tokens"] <= most_tokens)
            rows = np.concatenate([lowest[source], group[is_candidate][columns]])
            lowest[source] = rows

            # Documents of up to `longest` tokens may be held out whatever the fraction is. There
            # must be enough of them; longer ones stay in the rows for larger fractions.
            longest = most_document_tokens(source_tokens[source], 0, most_tokens)
            places = np.flatnonzero(rows["tokens"] <= longest)
            sums = np.cumsum(rows["tokens"][places], dtype=np.int64)
            share = most_tokens * source_tokens[source] // max(1, sum(source_tokens))
            most = sums[:1].sum() + share
            number = max(2, int(np.searchsorted(sums, most, side="right")) + 1)
            if number <= len(places):
                lowest[source] = rows[: places[number - 1] + 1]
                unfinished.remove(source)
        if not unfinished:
            break
    return lowest


def is_held_out(rows: Rows, held_out: bytes) -> npt.NDArray[np.bool_]:
    """Returns for each document whether it is held out for validation: [D] bool.

    Args:
        rows: [D] rows of documents or of copies of documents.
        held_out: The ids of the validation documents (`HeldOut.ids`).
    """
    return np.isin(id_keys(rows), np.frombuffer(held_out, f"S{ID_BYTES}"))


def split_ids(held_out: bytes) -> list[bytes]:
    """Splits `HeldOut.ids` into single ids of 16 bytes, ascending."""
    return [held_out[start : start + ID_BYTES] for start in range(0, len(held_out), ID_BYTES)]


def _list_documents(
    source: SourceTotals, fraction: float, most_tokens: int
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Lists the documents of a source that may be held out, in the order of their ids.

    At least two documents of the source stay for training. The listed documents together have at
    most a tenth of the source's tokens, or `fraction` of them if that is more.

    Args:
        source: The counts of the source.
        fraction: The share of tokens to hold out.
        most_tokens: The most tokens to hold out.

    Returns:
        The ids of K documents in hex, and the running sums of their tokens: [K].
    """
    longest = most_document_tokens(source.tokens, fraction, most_tokens)
    pairs = zip(source.lowest_ids, source.lowest_tokens, strict=True)
    short = [(document_id, tokens) for document_id, tokens in pairs if tokens <= longest]
    short = short[: max(0, source.documents - 2)]  # two documents stay for training
    sums = np.cumsum([tokens for _, tokens in short], dtype=np.int64)
    share = int(max(MOST_SHARE, fraction) * source.tokens)
    number = int(np.searchsorted(sums, share, side="right"))
    return [document_id for document_id, _ in short[:number]], sums[:number]


def _choose_numbers(
    sources: Sequence[SourceTotals],
    sums: Sequence[npt.NDArray[np.int64]],
    fraction: float,
    most_tokens: int,
) -> list[int]:
    """Returns how many documents of each source are held out (docs/format.md, section 6).

    Args:
        sources: The counts of all sources.
        sums: For each source the running sums of the tokens of the documents that may be held out.
        fraction: The share of tokens to hold out.
        most_tokens: The most tokens to hold out.
    """
    firsts = _choose_firsts(sums, most_tokens)
    tokens_left = most_tokens - sum(int(sums[source][0]) for source in firsts)
    total = sum(source.tokens for source in sources)
    wanted = wanted_tokens(total, fraction, most_tokens)
    numbers = [0] * len(sources)
    for source in firsts:
        tokens = sources[source].tokens
        limit = int(sums[source][0]) + tokens_left * tokens // total
        num_within = int(np.searchsorted(sums[source], limit, side="right"))
        share = -(-wanted * tokens // total)  # rounded up
        num_for_share = int(np.searchsorted(sums[source], share)) + 1
        numbers[source] = min(num_within, num_for_share)
    return _at_least_two(sums, numbers, most_tokens)


def _choose_firsts(sums: Sequence[npt.NDArray[Any]], most_tokens: int) -> list[int]:
    """Returns the numbers of the sources that hold out their first document.

    Sources are taken in the order of the lengths of their first documents, the shortest first. A
    source is left out if its first document and those that were taken before have more than
    `most_tokens` tokens together.

    Args:
        sums: For each source the running sums of the tokens of the documents that may be held out.
        most_tokens: The most tokens to hold out.
    """
    chosen: list[int] = []
    taken = 0
    firsts = sorted(
        (int(running_sums[0]), source)
        for source, running_sums in enumerate(sums)
        if len(running_sums)
    )
    for tokens, source in firsts:
        if taken + tokens <= most_tokens:
            chosen.append(source)
            taken += tokens
    return chosen


def _at_least_two(
    sums: Sequence[npt.NDArray[Any]], numbers: list[int], most_tokens: int
) -> list[int]:
    """Makes sure that at least two documents are held out, or none.

    If only one document is held out, a second one is added. It is the shortest of the documents
    that follow the held-out ones in each source. If it does not fit, nothing is held out.

    Args:
        sums: For each source the running sums of the tokens of the documents that may be held out.
        numbers: The number of documents of each source that are held out.
        most_tokens: The most tokens to hold out.

    Returns:
        The number of documents of each source to hold out.
    """
    total = sum(numbers)
    if total >= 2:
        return numbers

    taken = 0
    candidates: list[tuple[int, int]] = []  # tokens of the next document of a source, the source
    for source, (running_sums, number) in enumerate(zip(sums, numbers, strict=True)):
        sums_from_0 = [0, *running_sums.tolist()]
        taken += sums_from_0[number]
        if number + 1 < len(sums_from_0):
            candidates.append((sums_from_0[number + 1] - sums_from_0[number], source))
    if total == 0 or not candidates or taken + min(candidates)[0] > most_tokens:
        return [0] * len(sums)
    _, chosen = min(candidates)
    return [number + (source == chosen) for source, number in enumerate(numbers)]
