"""Sentence pairs for next sentence prediction, as spans of a bucket's tokens.

The draws are those of docs/parity.md 1.2-1.8, in their order: the same generator makes the same
pairs as google-research/bert ``create_pretraining_data.py``. A segment is a run of consecutive
tokens of one document, also after truncation, so two offsets say all of it. What is written here is
the definition; where the compiled loops (_instances.c) are at hand, they do the same.

Shapes: D documents, S sentences, N pairs, T packed tokens.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.seeds import draw_below
from tokenizer.compiled import load

loops: Any = load("pipeline.instances._instances")
"""The compiled module, or None where the Python path is to be used."""

_DTYPES = (np.int32, np.int64, np.int64, np.int32, np.int64, np.int64, np.bool_)  # of Pairs
NspBalance = Literal["reference", "exact"]
Span = tuple[int, int]
NUM_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
_MAX_TRIES = 10  # docs/parity.md 1.6
_FREE_PAIRS = 64  # docs/parity.md 5: the share of one-sentence chunks begins at 0, changes slowly


@dataclass(frozen=True)
class Pairs:
    """N pairs of segments; starts and stops are offsets into the bucket's tokens, end to end."""

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


class PackedPairs(NamedTuple):
    """N instances [CLS] A [SEP] B [SEP] end to end, without padding and not masked yet."""

    input_ids: npt.NDArray[np.unsignedinteger]  # [T]
    offsets: npt.NDArray[np.int64]  # [N + 1], where instances start
    segment_a_length: npt.NDArray[np.uint16]  # [N], tokens of type 0: [CLS] A [SEP]


def gather_pairs(
    tokens: npt.NDArray[np.unsignedinteger], pairs: Pairs, cls_id: int, sep_id: int
) -> PackedPairs:
    """[CLS] A [SEP] B [SEP] of each pair; `tokens` of the bucket's documents end to end."""
    a_length, b_length = pairs.a_stop - pairs.a_start, pairs.b_stop - pairs.b_start
    offsets = np.append(0, np.cumsum(a_length + b_length + NUM_SPECIAL_TOKENS))
    specials = np.array([cls_id, sep_id], tokens.dtype)
    input_ids = np.empty(offsets[-1], tokens.dtype)
    spans = np.stack([pairs.a_start, pairs.a_stop, pairs.b_start, pairs.b_stop], axis=1)
    if loops:
        loops.gather_pairs(tokens, spans, specials, input_ids)
    else:
        cls, sep = specials[:1], specials[1:]
        parts = ((cls, tokens[a:b], sep, tokens[c:d], sep) for a, b, c, d in spans.tolist())
        np.concatenate([input_ids[:0], *chain.from_iterable(parts)], out=input_ids)
    return PackedPairs(input_ids, offsets, (a_length + 2).astype(np.uint16))


class _Balance:
    """The chance of a random next that makes half of a bucket's pairs random (docs/parity.md 5).

    A chunk of one sentence always takes a random next; the chance is for all other chunks. It
    reaches one half at the end of the bucket if one-sentence chunks stay as frequent as they were.
    """

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        """Tokens of all documents to come, each as often as it is used; most tokens of a pair."""
        self.chance = 0.5
        self._tokens_left = num_tokens
        self._max_tokens = max_tokens
        self._num_pairs = self._num_forced = self._excess = 0

    def count(self, is_random_next: bool, is_single: bool, num_tokens: int) -> None:
        """Takes in one more pair, which went over so many tokens of its document."""
        self._tokens_left -= num_tokens
        self._num_pairs += 1
        self._num_forced += is_single
        self._excess += 1 if is_random_next else -1
        forced = self._num_forced / (self._num_pairs + _FREE_PAIRS)
        wanted = 0.5 - self._excess / (2 * max(1, self._tokens_left // self._max_tokens))
        self.chance = (wanted - forced) / (1 - forced)


@dataclass(frozen=True)
class _Sentences:
    """Where sentences lie in the bucket's tokens, in lists: single elements are quick to read."""

    bounds: list[int]  # [S + 1], first token of each sentence, and the number of tokens
    firsts: list[int]  # [D + 1], first sentence of each document, and the number of sentences

    def stop_at(self, first: int, end: int, num_tokens: int) -> int:
        """The sentence after those from `first` on that hold so many tokens, or `end`."""
        return bisect_left(self.bounds, self.bounds[first] + num_tokens, first + 1, end)


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
        sentence_offsets: [D + 1], first sentence of each document and S; none without sentences.
        seeds: One of 128 bits for each row; no draw of one document shifts those of another, nor,
            but for an exact balance, its pairs.
        seq_len: The most tokens an instance may have, the three special ones included.
        short_seq_prob: Share of documents cut to a random shorter target.
        nsp_balance: reference draws as the reference does; exact makes half random.
        rows: Documents to make pairs of, any number of times; by default each once. A random B
            comes from all documents of the bucket but A's own.

    Raises:
        ValueError: Fewer than two documents: a random B must come from another one.
    """
    num_documents = len(sentence_offsets) - 1
    if num_documents < 2:
        raise ValueError(
            "next sentence prediction takes a random B from another document: found"
            f" {num_documents} document(s) in the bucket, expected at least 2; add text, or use"
            " fewer buckets"
        )
    rows = range(num_documents) if rows is None else rows
    assert len(seeds) == len(rows), f"{len(seeds)} seeds for {len(rows)} documents"
    max_tokens = seq_len - NUM_SPECIAL_TOKENS
    assert max_tokens > 1, f"{seq_len} tokens leave no room for two segments"
    bounds = _find_bounds(sentence_lengths, sentence_offsets)
    token_counts = np.diff(bounds[sentence_offsets])
    balanced_tokens = int(token_counts[rows].sum()) if nsp_balance == "exact" else None
    if loops:
        return _pair_compiled(
            bounds, sentence_offsets, rows, seeds, max_tokens, short_seq_prob, balanced_tokens
        )
    sentences = _Sentences(bounds.tolist(), sentence_offsets.tolist())
    balance = None if balanced_tokens is None else _Balance(balanced_tokens, max_tokens)
    columns = [array("q") for _ in range(7)]
    for document, seed in zip(rows, seeds, strict=True):
        for pair in _pair_document(
            sentences, document, max_tokens, short_seq_prob, Random(seed), balance
        ):
            for column, value in zip(columns, pair, strict=True):
                column.append(value)
    return Pairs(*map(np.array, columns, _DTYPES))


def _pair_compiled(
    bounds: npt.NDArray[np.int64],
    sentence_offsets: npt.NDArray[np.integer],
    rows: Sequence[int],
    seeds: Sequence[int],
    max_tokens: int,
    short_seq_prob: float,
    balanced_tokens: int | None,
) -> Pairs:
    firsts, uses = np.ascontiguousarray(sentence_offsets, np.int64), np.array(rows, np.int64)
    room = int(np.diff(firsts)[uses].sum())  # a pair takes one sentence at least
    columns: list[npt.NDArray[Any]] = [np.empty(room, dtype) for dtype in _DTYPES]
    digits = np.frombuffer(b"".join(seed.to_bytes(16, "little") for seed in seeds), "<u4")
    balance = -1 if balanced_tokens is None else balanced_tokens
    rule = max_tokens, short_seq_prob, balance
    count = loops.make_pairs(bounds, firsts, uses, digits.astype(np.uint32), *rule, *columns)
    return Pairs(*(column[:count] for column in columns))


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
    balance: _Balance | None,
) -> Iterator[tuple[int, ...]]:
    """The pairs of one document: the fields of Pairs, in their order."""
    bounds = sentences.bounds
    is_short = rng.random() < short_seq_prob
    target = 2 + draw_below(max_tokens - 1, rng.getrandbits) if is_short else max_tokens
    sentence, end = sentences.firsts[document], sentences.firsts[document + 1]
    while sentence < end:
        chunk_end = sentences.stop_at(sentence, end, target)
        is_single = chunk_end == sentence + 1
        a_end = sentence + 1
        if not is_single:
            a_end += draw_below(chunk_end - a_end, rng.getrandbits)
        chance = balance.chance if balance else 0.5
        is_random_next = is_single or rng.random() < chance
        a = bounds[sentence], bounds[a_end]
        if is_random_next:
            document_b, b = _draw_random_b(sentences, document, target - (a[1] - a[0]), rng)
            next_sentence = a_end  # the rest of the chunk is put back
        else:
            document_b, b = document, (bounds[a_end], bounds[chunk_end])
            next_sentence = chunk_end
        if balance:
            balance.count(is_random_next, is_single, bounds[next_sentence] - bounds[sentence])
        a, b = _truncate(a, b, max_tokens, rng)
        yield document, *a, document_b, *b, is_random_next
        sentence = next_sentence


def _draw_random_b(
    sentences: _Sentences, document: int, target: int, rng: Random
) -> tuple[int, Span]:
    """Another document; its sentences from a random one on that hold `target` tokens (1.6)."""
    num_documents = len(sentences.firsts) - 1
    for _ in range(_MAX_TRIES):
        other = draw_below(num_documents, rng.getrandbits)
        if other != document:
            break
    else:
        # docs/parity.md 5: the reference takes the document itself
        other = (document + 1) % num_documents
    first, end = sentences.firsts[other], sentences.firsts[other + 1]
    first += draw_below(end - first, rng.getrandbits)
    return other, (sentences.bounds[first], sentences.bounds[sentences.stop_at(first, end, target)])


def _truncate(a: Span, b: Span, max_tokens: int, rng: Random) -> tuple[Span, Span]:
    """Cuts tokens off the longer segment, each at the front or the back (docs/parity.md 1.8)."""
    (a_start, a_stop), (b_start, b_stop) = a, b
    while (num_a := a_stop - a_start) + (num_b := b_stop - b_start) > max_tokens:
        is_front = rng.random() < 0.5
        if num_a > num_b:
            a_start, a_stop = (a_start + 1, a_stop) if is_front else (a_start, a_stop - 1)
        else:
            b_start, b_stop = (b_start + 1, b_stop) if is_front else (b_start, b_stop - 1)
    return (a_start, a_stop), (b_start, b_stop)
