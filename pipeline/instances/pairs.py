"""Sentence pairs for next sentence prediction, as spans of a bucket's tokens: the fast twin of the reference program.

The draws are those of docs/parity.md 1.2-1.8, in their order, so that the same generator makes the same pairs as
google-research/bert ``create_pretraining_data.py``; tests hold it against that program's output and a readable oracle.
No token is touched: a segment is a run of consecutive tokens of one document, also after truncation, so two offsets say
all of it; pipeline.instances.gather builds packed instances from spans. What is written here is the definition: where
compiled loops are at hand (pipeline.instances.compiled), they do the same.

Shapes: D documents, S sentences, N pairs.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
import numpy.typing as npt

import pipeline.instances.compiled as compiled
from pipeline.seeds import draw_below

NspBalance = Literal["reference", "exact"]
NUM_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
_MAX_TRIES = 10  # docs/parity.md 1.6
_FREE_PAIRS = 64  # docs/parity.md 5: the share of one-sentence chunks is 0 at first, and changes slowly
# The top bit of the fourth of every eight bytes, that many times; and for bytes.translate, whether the top bit is set.
_MARKS = [((1 << 64 * n) - 1) // ((1 << 64) - 1) << 31 for n in range(256)]
_IS_BACK = bytes(128) + b"\1" * 128


@dataclass(frozen=True)
class Pairs:
    """N pairs of segments; starts and stops are offsets into the tokens of the bucket's documents, end to end."""

    document_a: npt.NDArray[np.int32]
    a_start: npt.NDArray[np.int64]
    a_stop: npt.NDArray[np.int64]
    document_b: npt.NDArray[np.int32]
    b_start: npt.NDArray[np.int64]
    b_stop: npt.NDArray[np.int64]
    is_random_next: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.a_start)

    def take(self, rows: npt.NDArray[np.integer] | slice) -> "Pairs":
        """The chosen rows, in the order given."""
        return Pairs(**{name: column[rows] for name, column in vars(self).items()})


class _Balance:
    """Chance of a random next for chunks that have a choice, so that a bucket comes to half random, half actual nexts.

    It is what would level both at the bucket's end, were one-sentence chunks as frequent as so far (docs/parity.md 5).
    So it hardly depends on where a chunk stands, and what a long document is off by is spread over all others.
    """

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        """Of all documents to come, each as often as it is used; of both segments of a pair."""
        self.chance = 0.5
        self._tokens_left = num_tokens
        self._max_tokens = max_tokens
        self._num_pairs = self._num_forced = self._excess = 0

    def count(self, is_random_next: bool, is_forced: bool, num_tokens: int) -> float:
        """The chance after one more pair, which went over so many tokens of its document."""
        self._tokens_left -= num_tokens
        self._num_pairs += 1
        self._num_forced += is_forced
        self._excess += 1 if is_random_next else -1
        forced = self._num_forced / (self._num_pairs + _FREE_PAIRS)
        wanted = 0.5 - self._excess / (2 * max(1, self._tokens_left // self._max_tokens))
        self.chance = (wanted - forced) / (1 - forced)
        return self.chance


@dataclass(frozen=True)
class _Sentences:
    """Where sentences lie in the bucket's tokens: not in numpy's arrays, whose single elements are slow to read."""

    bounds: "array[int]"  # [S + 1], first token of each sentence, and the number of tokens
    firsts: list[int]  # [D + 1], first sentence of each document, and the number of sentences


def make_pairs(
    sentence_lengths: npt.NDArray[np.integer],
    sentence_offsets: npt.NDArray[np.integer],
    seeds: Sequence[int],
    seq_len: int,
    short_seq_prob: float = 0.1,
    nsp_balance: NspBalance = "reference",
    rows: Sequence[int] | None = None,
) -> Pairs:
    """Pairs of the documents of a bucket, in document order (docs/parity.md 1.2-1.8).

    Args:
        sentence_lengths: [S] tokens per sentence, all documents end to end; every one at least 1.
        sentence_offsets: [D + 1], first sentence of each document and S; every document has one at least.
        seeds: [D], one seed per document; no draw of one document shifts those of another, nor, but for an exact
            balance, its pairs. With rows, one per row.
        seq_len: The most tokens an instance may have, the three special ones included.
        short_seq_prob: Share of documents cut to a random shorter target.
        nsp_balance: reference draws as the reference does, or exact: half random, half actual nexts (docs/parity.md 5).
        rows: Documents to make pairs of, any of them any number of times; by default each once. A random B comes from
            all documents of the bucket but A's own.

    Raises:
        ValueError: Fewer than two documents: a random B must come from another one.
    """
    num_documents = len(sentence_offsets) - 1
    if num_documents < 2:
        raise ValueError(
            f"next sentence prediction takes a random B from another document: found {num_documents} document(s) "
            "in the bucket, expected at least 2; add text, or use fewer buckets"
        )
    rows = range(num_documents) if rows is None else rows
    assert len(seeds) == len(rows), f"{len(seeds)} seeds for {len(rows)} documents"
    max_tokens = seq_len - NUM_SPECIAL_TOKENS
    assert max_tokens > 1, f"{seq_len} tokens leave no room for two segments"
    bounds = _find_bounds(sentence_lengths, sentence_offsets)
    token_offsets = bounds[sentence_offsets]
    balanced_tokens = int(np.diff(token_offsets)[rows].sum()) if nsp_balance == "exact" else None
    if compiled.loops:
        return Pairs(
            *compiled.make_pairs(bounds, sentence_offsets, rows, seeds, max_tokens, short_seq_prob, balanced_tokens)
        )
    sentences = _Sentences(array("q", bounds.tobytes()), sentence_offsets.tolist())
    spans = array("q")
    balance = None if balanced_tokens is None else _Balance(balanced_tokens, max_tokens)
    for document, seed in zip(rows, seeds, strict=True):
        _pair_document(sentences, document, max_tokens, short_seq_prob, Random(seed), spans, balance)
    return _as_columns(spans, token_offsets)


def _find_bounds(
    sentence_lengths: npt.NDArray[np.integer], sentence_offsets: npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """[S + 1], first token of each sentence, and the number of tokens."""
    assert sentence_lengths.min() > 0, "an empty sentence reached pairing"
    assert np.diff(sentence_offsets).min() > 0, "a document without sentences reached pairing"
    assert sentence_offsets[-1] == len(sentence_lengths), "sentences and documents do not agree"
    bounds = np.zeros(len(sentence_lengths) + 1, np.int64)
    np.cumsum(sentence_lengths, out=bounds[1:])
    return bounds


def _pair_document(
    sentences: _Sentences,
    document: int,
    max_tokens: int,
    short_seq_prob: float,
    rng: Random,
    spans: "array[int]",
    balance: _Balance | None,
) -> None:
    """Appends (a_start, a_stop, b_start, b_stop, is_random_next) of each pair of one document."""
    random, getrandbits = rng.random, rng.getrandbits
    is_short = random() < short_seq_prob
    target = 2 + draw_below(max_tokens - 1, getrandbits) if is_short else max_tokens
    random_chance = 0.5 if balance is None else balance.chance
    rows: list[int] = []
    bounds, sentence, end = sentences.bounds, sentences.firsts[document], sentences.firsts[document + 1]
    walked = bounds[sentence]
    while sentence < end:
        a_start = bounds[sentence]
        chunk_end = bisect_left(bounds, a_start + target, sentence + 1, end)
        a_end = sentence + 1
        is_forced = is_random_next = chunk_end == a_end
        if not is_forced:
            a_end += draw_below(chunk_end - a_end, getrandbits)
            is_random_next = random() < random_chance
        a_stop = bounds[a_end]
        if is_random_next:
            b_start, b_stop = _draw_random_b(sentences, document, target - (a_stop - a_start), getrandbits)
            sentence = a_end  # the rest of the chunk is put back
        else:
            b_start, b_stop = a_stop, bounds[chunk_end]
            sentence = chunk_end
        num_cuts = a_stop - a_start + b_stop - b_start - max_tokens
        if num_cuts > 0:
            a_start, a_stop, b_start, b_stop = _truncate(a_start, a_stop, b_start, b_stop, num_cuts, getrandbits)
        rows += (a_start, a_stop, b_start, b_stop, is_random_next)
        if balance is not None:
            random_chance = balance.count(is_random_next, is_forced, bounds[sentence] - walked)
            walked = bounds[sentence]
    spans.fromlist(rows)  # twice as fast as array.extend


def _draw_random_b(
    sentences: _Sentences, document: int, target: int, getrandbits: Callable[[int], int]
) -> tuple[int, int]:
    """Sentences of another document from a random one on, until they hold `target` tokens (docs/parity.md 1.6)."""
    firsts, bounds = sentences.firsts, sentences.bounds
    num_documents = len(firsts) - 1
    for _ in range(_MAX_TRIES):
        other = draw_below(num_documents, getrandbits)
        if other != document:
            break
    else:
        other = (document + 1) % num_documents  # docs/parity.md 5: the reference takes the document itself
    first, end = firsts[other], firsts[other + 1]
    first += draw_below(end - first, getrandbits)
    b_start = bounds[first]
    return b_start, bounds[bisect_left(bounds, b_start + target, first + 1, end)]


def _truncate(
    a_start: int, a_stop: int, b_start: int, b_stop: int, num_cuts: int, getrandbits: Callable[[int], int]
) -> tuple[int, int, int, int]:
    """Cuts tokens off the longer segment's front or back, all in one draw (docs/parity.md 1.8).

    The reference draws ``random()`` for each token: eight bytes, below 0.5 (cut the front) iff the top bit of the
    fourth is 0. So counting these bits says all, and mostly (5 of 6) one segment stays the longer one throughout.
    """
    lead = (a_stop - a_start) - (b_stop - b_start)
    bits = getrandbits(64 * num_cuts)
    if num_cuts > abs(lead) or num_cuts >= len(_MARKS):
        cuts = bits.to_bytes(8 * num_cuts, "little")[3::8].translate(_IS_BACK)
        return _truncate_both(a_start, a_stop, b_start, b_stop, lead, cuts)
    num_back = (bits & _MARKS[num_cuts]).bit_count()
    if lead > 0:
        return a_start + num_cuts - num_back, a_stop - num_back, b_start, b_stop
    return a_start, a_stop, b_start + num_cuts - num_back, b_stop - num_back


def _truncate_both(
    a_start: int, a_stop: int, b_start: int, b_stop: int, lead: int, cuts: bytes
) -> tuple[int, int, int, int]:
    """As `_truncate`: the longer segment (A by `lead` tokens) is cut until both are equal, then B, A, B, A...."""
    both = cuts[abs(lead) :]
    a_cuts, b_cuts = both[1::2], both[::2]
    if lead > 0:
        a_cuts += cuts[:lead]
    else:
        b_cuts += cuts[:-lead]
    return a_start + a_cuts.count(0), a_stop - a_cuts.count(1), b_start + b_cuts.count(0), b_stop - b_cuts.count(1)


def _as_columns(spans: "array[int]", token_offsets: npt.NDArray[np.int64]) -> Pairs:
    """Rows of `_pair_document` as columns; the documents are those whose tokens the segments are."""
    rows = np.frombuffer(spans, np.int64).reshape(-1, 5)
    a_start, a_stop, b_start, b_stop, is_random_next = (np.ascontiguousarray(column) for column in rows.T)
    document_a, document_b = (
        (np.searchsorted(token_offsets, start, side="right") - 1).astype(np.int32) for start in (a_start, b_start)
    )
    return Pairs(document_a, a_start, a_stop, document_b, b_start, b_stop, is_random_next.astype(np.bool_))
