"""Cuts documents into instances of one segment, [CLS] A [SEP], for models without NSP.

Two ways to cut are published. RoBERTa's DOC-SENTENCES (Liu et al. 2019, section 4.2) puts as many
consecutive sentences of one document into an instance as fit. BabyBERTa (Huebner et al. 2021) takes
one sentence for each instance. In both ways every token of a document is in exactly one instance of
a pass.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from pipeline.instances.pairs import Pairs, find_bounds
from pipeline.seeds import draw_below
from pipeline.shards.instance_kind import InstanceKind

NUM_SPECIAL_TOKENS = 2  # [CLS] A [SEP]


def cut_segments(
    sentence_lengths: npt.NDArray[np.integer],
    sentence_offsets: npt.NDArray[np.integer],
    seeds: Sequence[int],
    seq_len: int,
    kind: InstanceKind,
    short_seq_prob: float = 0.1,
    rows: Sequence[int] | None = None,
) -> Pairs:
    """Cuts a bucket's documents into segments, in document order.

    A sentence that is too long for an instance is cut into as few pieces as possible, of equal
    length. Each piece is an instance by itself.

    Args:
        sentence_lengths: [S] the number of tokens of each sentence, at least 1, of all documents
            end to end.
        sentence_offsets: [D + 1] the index of the first sentence of each document, and S at the
            end. Every document has at least one sentence.
        seeds: A seed of 128 bits for each of `rows`.
        seq_len: The most tokens an instance may have, [CLS] and [SEP] included.
        kind: "doc-sentences" or "single-sentence".
        short_seq_prob: The share of documents whose segments have a shorter target length, drawn at
            random as for pairs (docs/parity.md 1.2). It does not matter for "single-sentence".
        rows: The indices of the documents to cut. An index may occur several times. None takes
            every document once.

    Returns:
        The segments as pairs whose B is empty.
    """
    if rows is None:
        rows = range(len(sentence_offsets) - 1)
    assert len(seeds) == len(rows), f"{len(seeds)} seeds for {len(rows)} documents"
    bounds = find_bounds(sentence_lengths, sentence_offsets)
    bound_list = bounds.tolist()
    most = seq_len - NUM_SPECIAL_TOKENS
    documents = array("i")
    firsts = array("q")  # the first sentence of each segment
    ends = array("q")  # one past the last
    for document, seed in zip(rows, seeds, strict=True):
        target = (
            0 if kind == "single-sentence" else _draw_target(Random(seed), most, short_seq_prob)
        )
        sentence = int(sentence_offsets[document])
        end = int(sentence_offsets[document + 1])
        while sentence < end:
            # How many sentences fit together; the first one is taken even if it does not fit.
            longest = bisect_right(bound_list, bound_list[sentence] + target, sentence + 2, end + 1)
            documents.append(document)
            firsts.append(sentence)
            sentence = longest - 1
            ends.append(sentence)
    return _cut_long(
        np.array(documents, np.int32), bounds[np.array(firsts)], bounds[np.array(ends)], most
    )


def _draw_target(rng: Random, most: int, short_seq_prob: float) -> int:
    """Draws the number of tokens that the segments of a document should have at most."""
    is_short = rng.random() < short_seq_prob
    return 2 + draw_below(most - 1, rng.getrandbits) if is_short else most


def _cut_long(
    documents: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    most: int,
) -> Pairs:
    """Cuts segments that are too long into pieces whose lengths differ by at most one token.

    Args:
        documents: [N] the index of each segment's document.
        starts: [N] the index of its first token.
        stops: [N] one past the index of its last token.
        most: The most tokens of a piece.
    """
    lengths = stops - starts
    counts = -(-lengths // most)
    owner = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    a_start = starts[owner] + number * lengths[owner] // counts[owner]
    a_stop = starts[owner] + (number + 1) * lengths[owner] // counts[owner]
    is_random_next = np.zeros(len(owner), np.bool_)
    of_document = documents[owner]
    return Pairs(of_document, a_start, a_stop, of_document, a_stop, a_stop, is_random_next)
