"""Text to arrays of ids, as fast as plain Python goes: what defines the ids in production, and stands alone.

How it goes, for some NUM_CHARACTERS_AT_ONCE of sentences at a time:
1. Sentences are joined into UTF-8 bytes, a newline after each. One `translate` lowers ASCII letters, turns tab and
   carriage return into spaces, and makes the newlines NUL; other ASCII controls are dropped where there are any.
2. Another `translate` says what each byte is: space, ASCII punctuation, which is a word of its own wherever it stands,
   or part of a chunk. From that numpy finds where chunks start and stop.
3. `chunk_table` says where the ids of each chunk lie, in one buffer, from which they are gathered in one step.
4. Chunks that it lacks are one ASCII word, or have other characters: `chunk_matcher` normalises the latter by the
   library, whose Unicode tables are the standard here, and matches words with the vocabulary.
"""

import string
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokenizer.chunk_matcher import ChunkMatcher
from tokenizer.chunk_table import PADDING, ChunkTable
from tokenizer.vocab import IdArray, Vocabulary

Integers = NDArray[np.int64]

NUM_CHARACTERS_AT_ONCE = 1 << 19
"""Enough to make numpy's cost of a call small, few enough for the arrays to stay in the processor's cache."""

_SENTENCE_END = b"\0"
_CONTROLS = bytes([*range(0x20), 0x7F])
_DROPPED_CONTROLS = _CONTROLS.translate(None, delete=b"\t\n\r")
SPACE, MARK, DROPPED, PART = range(4)
"""Kinds of bytes; `native/sentences.h` has the same."""


class NumpyEncoder:
    """Encodes sentences with one vocabulary, and remembers the chunks it has met."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self._byte_table = byte_table(lower_case)
        self._chunks = ChunkTable(ChunkMatcher(vocab, lower_case).match, vocab.dtype)

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """As `tokenizer.encode.Encoder` has it."""
        groups = [self._encode_group(group) for group in _group(sentences)]
        ids, lengths = zip(*groups, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_group(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """As `encode_sentences`. C chunks, T ids."""
        text, kinds = self._translate(sentences)
        starts_C, stops_C = _find_chunks(np.frombuffer(kinds, np.uint8))
        buffer, places_C, counts_C = self._chunks.look_up(text, starts_C, stops_C)
        offsets = np.zeros(len(counts_C) + 1, np.int64)
        np.cumsum(counts_C, out=offsets[1:])
        sources_T = np.repeat(places_C - offsets[:-1], counts_C)
        sources_T += np.arange(len(sources_T))
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _SENTENCE_END[0])[: len(sentences)]
        bounds = offsets[np.searchsorted(starts_C, ends)]
        return buffer.take(sources_T), np.diff(bounds, prepend=0).astype(np.uint32)

    def _translate(self, sentences: Sequence[str]) -> tuple[bytes, bytes]:
        """UTF-8 without case and controls, a NUL after each sentence and PADDING of them at the end; and its kinds."""
        joined = _join_lines(sentences)
        text = joined.translate(self._byte_table)
        kinds = text.translate(KINDS)
        if DROPPED in kinds:
            text = joined.translate(self._byte_table, delete=_DROPPED_CONTROLS)
            kinds = text.translate(KINDS)
        return text, kinds


def _group(sentences: Sequence[str]) -> Iterator[Sequence[str]]:
    """Runs of sentences of some NUM_CHARACTERS_AT_ONCE together; one run at least."""
    num_characters = np.cumsum(np.fromiter(map(len, sentences), np.int64, len(sentences)))
    cuts = np.flatnonzero(np.diff(num_characters // NUM_CHARACTERS_AT_ONCE)) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(sentences)]):
        yield sentences[start:stop]


def byte_table(lower_case: bool) -> bytes:
    """For bytes.translate: newline to NUL, tab and carriage return to space, and if `lower_case` A-Z to a-z."""
    # A NUL of a text's own must not end a sentence: another dropped control stands for it.
    source, target = b"\n\t\r\0", _SENTENCE_END + b"  " + _DROPPED_CONTROLS[-1:]
    if lower_case:
        source, target = source + string.ascii_uppercase.encode(), target + string.ascii_lowercase.encode()
    return bytes.maketrans(source, target)


def _kind_of(byte: int) -> int:
    if byte in _SENTENCE_END + b" ":
        return SPACE
    if byte in _DROPPED_CONTROLS:
        return DROPPED
    return MARK if chr(byte) in string.punctuation else PART


KINDS = bytes(map(_kind_of, range(256)))


def _find_chunks(kinds: NDArray[np.uint8]) -> tuple[Integers, Integers]:
    """Where chunks start and where they stop: runs of parts, and single marks."""
    is_part, is_mark = kinds == PART, kinds == MARK
    is_first, is_last = is_part.copy(), is_part.copy()
    is_first[1:] &= ~is_part[:-1]
    is_last[:-1] &= ~is_part[1:]
    return np.flatnonzero(is_first | is_mark), np.flatnonzero(is_last | is_mark) + 1


def _join_lines(sentences: Sequence[str]) -> bytes:
    """UTF-8 of the sentences, a newline after each and PADDING more; one inside a sentence becomes a space."""
    padding = b"\n" * PADDING
    data = b"\n".join([*map(str.encode, sentences), padding])
    if data.count(b"\n") != len(sentences) + PADDING:
        data = b"\n".join([*(sentence.replace("\n", " ").encode() for sentence in sentences), padding])
    return data
