"""Makes sentence pairs for next sentence prediction, as spans of a bucket's tokens.

Random draws are made in the order of docs/parity.md 1.2-1.8, so the same generator makes the same
pairs as google-research/bert `create_pretraining_data.py`. The tokens of a segment are consecutive
tokens of one document, and stay so when the segment is truncated. So two offsets describe it. The
Python code of this module defines which pairs are made. If the compiled loops (_instances.c) are
installed, they are used instead, and make the same pairs.

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
"""The compiled module, or None if the Python code is to be used."""

_DTYPES = (np.int32, np.int64, np.int64, np.int32, np.int64, np.int64, np.bool_)  # of Pairs

NspBalance = Literal["reference", "exact"]
"""How many pairs have a random B: as in the reference, 56-57 %, or exactly half."""

Span = tuple[int, int]
"""The first of some consecutive tokens of the bucket, and one past the last."""

NUM_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
_MAX_TRIES = 10  # docs/parity.md 1.6
_FREE_PAIRS = 64  # docs/parity.md 5; with it the share of one-sentence chunks grows slowly from 0


@dataclass(frozen=True)
class Pairs:
    """N pairs of segments, as spans of the tokens of a bucket's documents laid end to end.

    Instances of one segment are pairs with an empty B, whose document is that of A.

    Attributes:
        document_a: [N] the index of the document that A is from.
        a_start: [N] the index of the first token of A.
        a_stop: [N] one past the index of the last token of A.
        document_b: [N] the index of the document that B is from.
        b_start: [N] the index of the first token of B.
        b_stop: [N] one past the index of the last token of B.
        is_random_next: [N] whether B is from another document and does not follow A.
    """

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
        """Returns some of the pairs, in the order of `rows`."""
        return Pairs(**{name: column[rows] for name, column in vars(self).items()})


class PackedPairs(NamedTuple):
    """N instances [CLS] A [SEP] B [SEP] end to end, without padding and not masked yet.

    An instance of one segment is [CLS] A [SEP].

    Attributes:
        input_ids: [T] the tokens of all instances.
        offsets: [N + 1] the index of the first token of each instance, and T at the end.
        segment_a_length: [N] the number of tokens of type 0 of each instance: [CLS] A [SEP].
    """

    input_ids: npt.NDArray[np.unsignedinteger]
    offsets: npt.NDArray[np.int64]
    segment_a_length: npt.NDArray[np.uint16]


def gather_pairs(
    tokens: npt.NDArray[np.unsignedinteger], pairs: Pairs, cls_id: int, sep_id: int
) -> PackedPairs:
    """Copies the tokens of pairs into instances [CLS] A [SEP] B [SEP], or [CLS] A [SEP] without B.

    Args:
        tokens: The tokens of the bucket's documents, end to end.
        pairs: The pairs.
        cls_id: The id of [CLS].
        sep_id: The id of [SEP].
    """
    a_length = pairs.a_stop - pairs.a_start
    b_length = pairs.b_stop - pairs.b_start
    second = np.where(b_length > 0, b_length + 1, 0)  # B [SEP]
    offsets = np.append(0, np.cumsum(a_length + 2 + second))
    specials = np.array([cls_id, sep_id], tokens.dtype)
    input_ids = np.empty(offsets[-1], tokens.dtype)
    spans = np.stack([pairs.a_start, pairs.a_stop, pairs.b_start, pairs.b_stop], axis=1)
    if loops:
        loops.gather_pairs(tokens, spans, specials, input_ids)
    else:
        cls = specials[:1]
        sep = specials[1:]
        parts = (
            (cls, tokens[a:b], sep, tokens[c:d], sep[: d - c]) for a, b, c, d in spans.tolist()
        )
        np.concatenate([input_ids[:0], *chain.from_iterable(parts)], out=input_ids)
    return PackedPairs(input_ids, offsets, (a_length + 2).astype(np.uint16))


class _Balance:
    """Computes the chance that a chunk gets a random B, so that half of all pairs have one.

    A chunk is the sequence of sentences of a document from which one pair is made. A chunk of one
    sentence always gets a random B. All other chunks get one with a chance that is computed anew
    after every pair (docs/parity.md 5): it is lower the more pairs have had a random B, and the
    more chunks have had one sentence. If the share of one-sentence chunks does not change, half of
    all pairs of the bucket are random in the end.

    Attributes:
        chance: The chance for the next chunk. It may be below 0 or above 1.
    """

    def __init__(self, num_tokens: int, max_tokens: int) -> None:
        """Starts with a chance of one half.

        Args:
            num_tokens: The number of tokens of all documents, each as often as it is used.
            max_tokens: The most tokens of a pair.
        """
        self.chance = 0.5
        self._tokens_left = num_tokens
        self._max_tokens = max_tokens
        self._num_pairs = 0
        self._num_forced = 0  # pairs of one-sentence chunks
        self._excess = 0  # random pairs minus other pairs

    def count(self, is_random_next: bool, is_single: bool, num_tokens: int) -> None:
        """Counts one more pair, and computes the chance for the next chunk.

        Args:
            is_random_next: Whether the pair has a random B.
            is_single: Whether its chunk has one sentence.
            num_tokens: How many tokens of A's document are used up by the pair. Sentences that a
                random B replaced are not, since the next chunk begins with them.
        """
        self._tokens_left -= num_tokens
        self._num_pairs += 1
        self._num_forced += is_single
        self._excess += 1 if is_random_next else -1
        forced = self._num_forced / (self._num_pairs + _FREE_PAIRS)
        wanted = 0.5 - self._excess / (2 * max(1, self._tokens_left // self._max_tokens))
        self.chance = (wanted - forced) / (1 - forced)


@dataclass(frozen=True)
class _Sentences:
    """Says at which token each sentence begins, and with which sentence each document begins.

    Both are lists and not arrays, because Python reads a single element of a list faster.

    Attributes:
        bounds: [S + 1] the index of the first token of each sentence, and the number of all tokens
            at the end.
        firsts: [D + 1] the index of the first sentence of each document, and S at the end.
    """

    bounds: list[int]
    firsts: list[int]

    def stop_at(self, first: int, end: int, num_tokens: int) -> int:
        """Returns where a chunk that begins with sentence `first` ends: one past its last sentence.

        The chunk has at least one sentence. It ends as soon as it has `num_tokens` tokens or more.

        Args:
            first: The index of the first sentence of the chunk.
            end: One past the last sentence that the chunk may have.
            num_tokens: The number of tokens at which the chunk ends.
        """
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
    """Makes the pairs of a bucket's documents, in document order (docs/parity.md 1.2-1.8).

    Every document has its own seed, so no draw for one document changes the draws for another. If
    `nsp_balance` is "reference", the pairs of a document do not depend on documents before it.

    Args:
        sentence_lengths: [S] the number of tokens of each sentence, at least 1, of all documents
            end to end.
        sentence_offsets: [D + 1] the index of the first sentence of each document, and S at the
            end. Every document has at least one sentence.
        seeds: A seed of 128 bits for each of `rows`.
        seq_len: The most tokens an instance may have, the three special ones included.
        short_seq_prob: The share of documents whose pairs have a shorter target length, drawn at
            random.
        nsp_balance: "reference" draws a random B as google-research/bert does, which gives some
            56 % of the pairs a random B; "exact" makes half of the pairs random.
        rows: The indices of the documents to make pairs of. An index may occur several times. None
            takes every document once. A random B may be from any other document of the bucket, also
            from one that is not in `rows`.

    Raises:
        ValueError: There are fewer than two documents, so there is no other one for a random B.
    """
    num_documents = len(sentence_offsets) - 1
    if num_documents < 2:
        raise ValueError(
            "next sentence prediction takes a random B from another document: found"
            f" {num_documents} document(s) in the bucket, expected at least 2; add text, or use"
            " fewer buckets"
        )
    if rows is None:
        rows = range(num_documents)
    assert len(seeds) == len(rows), f"{len(seeds)} seeds for {len(rows)} documents"
    max_tokens = seq_len - NUM_SPECIAL_TOKENS
    assert max_tokens > 1, f"{seq_len} tokens leave no room for two segments"

    bounds = find_bounds(sentence_lengths, sentence_offsets)
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
    """Makes pairs by the compiled loops.

    Args:
        bounds: [S + 1] the index of the first token of each sentence, and the number of all tokens
            at the end.
        sentence_offsets: [D + 1] the index of the first sentence of each document, and S at the
            end.
        rows: The documents to make pairs of.
        seeds: A seed for each of `rows`.
        max_tokens: The most tokens of a pair.
        short_seq_prob: The share of documents with a shorter target length.
        balanced_tokens: The number of tokens of all `rows`; given if `nsp_balance` is "exact", so
            that half of the pairs are random (`_Balance`). None if a chunk of several sentences
            gets a random B with a chance of one half, as in google-research/bert.
    """
    firsts = np.ascontiguousarray(sentence_offsets, np.int64)
    uses = np.array(rows, np.int64)
    room = int(np.diff(firsts)[uses].sum())  # a pair uses at least one sentence
    columns: list[npt.NDArray[Any]] = [np.empty(room, dtype) for dtype in _DTYPES]
    digits = np.frombuffer(b"".join(seed.to_bytes(16, "little") for seed in seeds), "<u4")
    balance = -1 if balanced_tokens is None else balanced_tokens
    count = loops.make_pairs(
        bounds,
        firsts,
        uses,
        digits.astype(np.uint32),
        max_tokens,
        short_seq_prob,
        balance,
        *columns,
    )
    return Pairs(*(column[:count] for column in columns))


def find_bounds(
    sentence_lengths: npt.NDArray[np.integer], sentence_offsets: npt.NDArray[np.integer]
) -> npt.NDArray[np.int64]:
    """Returns the first token of each sentence, and at the end the number of tokens: [S + 1]."""
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
    """Yields the pairs of one document, each as the fields of `Pairs` in their order.

    Args:
        sentences: The sentences of all documents.
        document: The index of the document.
        max_tokens: The most tokens of a pair.
        short_seq_prob: The chance that all pairs of the document have a shorter target length.
        rng: The document's generator.
        balance: Computes the chance that B is random. With None the chance is one half, as in
            google-research/bert.
    """
    bounds = sentences.bounds
    is_short = rng.random() < short_seq_prob
    target = 2 + draw_below(max_tokens - 1, rng.getrandbits) if is_short else max_tokens
    sentence = sentences.firsts[document]
    end = sentences.firsts[document + 1]
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
            next_sentence = a_end  # the other sentences of the chunk are put back
        else:
            document_b = document
            b = bounds[a_end], bounds[chunk_end]
            next_sentence = chunk_end
        if balance:
            balance.count(is_random_next, is_single, bounds[next_sentence] - bounds[sentence])
        a, b = _truncate(a, b, max_tokens, rng)
        yield document, *a, document_b, *b, is_random_next
        sentence = next_sentence


def _draw_random_b(
    sentences: _Sentences, document: int, target: int, rng: Random
) -> tuple[int, Span]:
    """Draws a random segment B from another document (docs/parity.md 1.6).

    Args:
        sentences: The sentences of all documents.
        document: The index of A's document.
        target: The number of tokens that B should have. B ends with the sentence that reaches it,
            or with the document.
        rng: The generator of A's document.

    Returns:
        The index of B's document, and the span of B.
    """
    num_documents = len(sentences.firsts) - 1
    for _ in range(_MAX_TRIES):
        other = draw_below(num_documents, rng.getrandbits)
        if other != document:
            break
    else:
        # docs/parity.md 5: the reference takes the document itself
        other = (document + 1) % num_documents
    first = sentences.firsts[other]
    end = sentences.firsts[other + 1]
    first += draw_below(end - first, rng.getrandbits)
    stop = sentences.stop_at(first, end, target)
    return other, (sentences.bounds[first], sentences.bounds[stop])


def _truncate(a: Span, b: Span, max_tokens: int, rng: Random) -> tuple[Span, Span]:
    """Cuts tokens off the longer segment until both fit together (docs/parity.md 1.8).

    Each token is cut off at the front or at the back, at random. B counts as the longer segment if
    both are equally long.

    Args:
        a: The span of A.
        b: The span of B.
        max_tokens: The most tokens of both together.
        rng: The generator of A's document.

    Returns:
        The spans of A and of B.
    """
    a_start, a_stop = a
    b_start, b_stop = b
    while (a_stop - a_start) + (b_stop - b_start) > max_tokens:
        is_front = rng.random() < 0.5
        if a_stop - a_start > b_stop - b_start:
            a_start += is_front
            a_stop -= not is_front
        else:
            b_start += is_front
            b_stop -= not is_front
    return (a_start, a_stop), (b_start, b_stop)
