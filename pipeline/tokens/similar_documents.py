"""Finds documents that are nearly the same as given ones, among the encoded documents of a dataset.

The signatures, the bands and the estimate of similarity are those of a build with --near_duplicates
(`pipeline.text.minhash`), so two documents are found with a probability of 99 % if their similarity
is the threshold. The text of a document is put together from its tokens, so words that were cut at
punctuation stay cut, and unknown words are all alike.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipeline.storage.ahead import map_ahead
from pipeline.text.minhash import band_keys, count_matches, sign_texts, similarity_of
from pipeline.text.minhash import sketch_signatures as sketch
from pipeline.tokens.near_duplicates import SimilarityRule, similarity_rule
from pipeline.tokens.provenance import EncodedDocuments, find_documents
from pipeline.tokens.token_index import read_part_rows, read_tokens
from pipeline.tokens.token_parts import TokenizedDocument, unpack_documents
from tokenizer.vocab import CONTINUATION, Vocabulary

_BATCH_BYTES = 1 << 23
_AT_ONCE = 4


@dataclass(frozen=True)
class SimilarDocument:
    """A document that is nearly the same as another one.

    Attributes:
        id: Its id, 16 bytes.
        other: The id of the other one, which was given. If it is like several, the most similar.
        similarity: The estimated Jaccard similarity of their sets of 5 consecutive words, 0 to 1.
    """

    id: bytes
    other: bytes
    similarity: float


@dataclass(frozen=True)
class _Sought:
    """The given documents, D of them, and how others are compared with them.

    Attributes:
        ids: Their ids.
        keys: The keys of all their bands, ascending, uint64 [D * bands].
        owners: For each of `keys` the index of its document.
        sketches: The sketches of the documents, uint8 [D, K / 2].
        rule: Which documents are compared, and which are similar.
    """

    ids: list[bytes]
    keys: np.ndarray
    owners: np.ndarray
    sketches: np.ndarray
    rule: SimilarityRule


def find_similar(
    tokens: EncodedDocuments, vocabulary: Vocabulary, ids: Collection[int], threshold: float
) -> list[SimilarDocument]:
    """Returns the documents that are nearly the same as one of the given ones.

    All encoded documents are read. Copies of the given documents have the same ids, so they are not
    in the result. Documents that the build has dropped later may be.

    Args:
        tokens: The encoded documents of a dataset.
        vocabulary: The vocabulary of the dataset.
        ids: The given documents, by the first 64 bits of their ids. Those that are not among the
            encoded documents are skipped.
        threshold: The least similarity, from 0.5 to 1.

    Returns:
        One entry for each document, the most similar first.

    Raises:
        ValueError: A file of the encoded documents is missing or damaged.
    """
    spell = partial(_spell, _pieces(vocabulary))
    sought = _sign_sought(tokens, vocabulary, ids, threshold, spell)
    if sought is None:
        return []
    compare = partial(_compare, tokens, vocabulary, sought, {*ids}, spell)
    best: dict[bytes, SimilarDocument] = {}
    for found in map_ahead(compare, _batches(tokens), _AT_ONCE):
        for document in found:
            known = best.get(document.id)
            if known is None or document.similarity > known.similarity:
                best[document.id] = document
    return sorted(best.values(), key=lambda document: (-document.similarity, document.id))


def _pieces(vocabulary: Vocabulary) -> list[str]:
    """Returns each token as it continues a text: with a space before it if it begins a word."""
    return [
        token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else f" {token}"
        for token in vocabulary.tokens
    ]


def _spell(pieces: Sequence[str], document: TokenizedDocument) -> str:
    """Returns the text of a document, with a space between its words."""
    return "".join([pieces[token] for token in document.tokens.tolist()]).strip()


def _sign_sought(
    tokens: EncodedDocuments,
    vocabulary: Vocabulary,
    ids: Collection[int],
    threshold: float,
    spell: "partial[str]",
) -> _Sought | None:
    """Reads and signs the given documents; returns None if none is among the encoded documents."""
    copies = find_documents(tokens, [f"{document:016x}" for document in ids])
    texts: dict[bytes, str] = {}
    for found in copies.values():
        for document in found[:1]:
            name = f"{document.part}.tokens"
            data = tokens.folder.read_range(name, document.offset, document.offset + document.size)
            [read] = unpack_documents(data, vocabulary.dtype, tokens.folder.locate(name))
            texts[document.id] = spell(read)
    if not texts:
        return None
    rule = similarity_rule(threshold)
    signatures = sign_texts([*texts.values()])
    keys = band_keys(signatures, rule.bands, rule.rows).reshape(-1)
    order = np.argsort(keys, kind="stable")
    return _Sought([*texts], keys[order], order // rule.bands, sketch(signatures), rule)


def _batches(tokens: EncodedDocuments) -> Iterator[tuple[str, int, int]]:
    """Yields ranges of bytes of `.tokens` files that hold whole documents, some 8 MB each.

    Yields:
        The name of the part, the first byte, and one past the last.
    """
    for part in tokens.store["part_names"]:
        rows = read_part_rows(tokens.folder, f"{part}.index")
        ends = (rows["offset"] + rows["size"]).astype(np.int64)
        start = 0
        while start < (int(ends[-1]) if len(ends) else 0):
            last = int(np.searchsorted(ends, start + _BATCH_BYTES))
            stop = int(ends[min(last, len(ends) - 1)])
            yield part, start, stop
            start = stop


def _compare(
    tokens: EncodedDocuments,
    vocabulary: Vocabulary,
    sought: _Sought,
    left_out: Collection[int],
    spell: "partial[str]",
    batch: tuple[str, int, int],
) -> list[SimilarDocument]:
    """Returns the documents in a range of a `.tokens` file that are similar to the given ones.

    Args:
        tokens: The encoded documents.
        vocabulary: The vocabulary.
        sought: The given documents.
        left_out: Documents that are not compared, by the first 64 bits of their ids.
        spell: Returns the text of a document.
        batch: The name of the part, the first byte, and one past the last.
    """
    part, start, stop = batch
    name = f"{part}.tokens"
    data = read_tokens(tokens.folder, name, start, stop)
    read = [
        document
        for document in unpack_documents(data, vocabulary.dtype, tokens.folder.locate(name))
        if int.from_bytes(document.id[:8], "big") not in left_out
    ]
    if not read:
        return []
    rule = sought.rule
    signatures = sign_texts([spell(document) for document in read])
    keys = band_keys(signatures, rule.bands, rule.rows).reshape(-1)
    firsts = np.searchsorted(sought.keys, keys, side="left")
    lasts = np.searchsorted(sought.keys, keys, side="right")
    hits = np.flatnonzero(firsts < lasts)
    pairs = {
        (int(hit) // rule.bands, int(sought.owners[number]))
        for hit in hits
        for number in range(firsts[hit], lasts[hit])
    }
    if not pairs:
        return []
    documents, others = np.array(sorted(pairs)).T
    sketches = sketch(signatures[documents])
    matches = count_matches(sketches, sought.sketches[others])
    return [
        SimilarDocument(read[document].id, sought.ids[other], similarity_of(int(count)))
        for document, other, count in zip(
            documents.tolist(), others.tolist(), matches.tolist(), strict=True
        )
        if count >= rule.matches
    ]
