"""Text to arrays of ids, as fast as plain Python goes: what the pipeline runs on the whole corpus.

The ids are those of `tokenizers.Tokenizer.from_file("tokenizer.json")` with `encode_special_tokens = True`, on every
text (docs/parity.md 3): "[MASK]" in a text is three words, and no special id but [UNK]'s comes out of one.

How it goes, for some MiB of sentences at a time:
1. Sentences are joined into UTF-8 bytes, a newline after each. One `translate` lowers ASCII letters, turns tab and
   carriage return into spaces and drops other ASCII controls.
2. A table of bytes finds where chunks start: behind spaces, and at and behind each ASCII punctuation character, which
   is a word of its own wherever it stands, and at each newline. A chunk goes up to the next one, spaces included.
3. Arrow's `dictionary_encode` numbers the distinct chunks, so that Python looks at each of these once.
4. A dict gives their ids. A chunk it lacks is one ASCII word, or has other characters. The latter are normalised by the
   library, whose Unicode tables are the standard here, and go through a second dict (a Chinese chunk has become many),
   then through its word splitter. Words are matched with the vocabulary by us.
5. The ids of all chunks are gathered from those of the distinct ones.

May import the standard library, numpy, pyarrow, tokenizers, and this room's modules.
"""

import string
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenizer.export import build_normalizer, build_pre_tokenizer
from tokenizer.vocab import CONTINUATION, Vocabulary
from tokenizer.wordpiece import MAX_WORD_CHARACTERS

IdArray = NDArray[np.unsignedinteger]

CHARACTERS_AT_ONCE = 1 << 22
"""Text of one round: enough that most chunks are repetitions, little enough that its arrays are some 50 MB."""

MAX_CACHED_CHUNKS = 1 << 18
"""When the cache holds more chunks it is emptied: new chunks never cease, and common ones are back at once."""

MAX_CACHED_CHUNK_BYTES = 64
"""Longer chunks (Chinese sentences, long URLs) hardly return and are not kept; together a bound on memory."""

_CHUNKS_A_CALL = 256
_CHUNK_MARK = b"|"  # in no chunk but its own, and in no other character's normal form
_SPACE, _NEWLINE = ord(" "), ord("\n")
_CONTROLS = bytes([*range(0x20), 0x7F])
_DROPPED_CONTROLS = _CONTROLS.translate(None, delete=b"\t\n\r")


class Encoder:
    """Encodes sentences with one vocabulary; pickled as its two arguments, without its cache."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self.vocab = vocab
        self.lower_case = lower_case
        self._byte_table = _byte_table(lower_case)
        self._stands_alone = np.isin(np.arange(256), list(string.punctuation.encode() + b"\n"))
        self._matcher = _ChunkMatcher(vocab, lower_case)
        self._chunk_ids: dict[bytes, bytes] = {}

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Vocabulary, bool]]:
        return Encoder, (self.vocab, self.lower_case)

    def encode(self, text: str) -> IdArray:
        """Ids of a text, of the vocabulary's dtype; no [CLS] or [SEP] added."""
        return self.encode_sentences([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Ids of all sentences one after the other, of the vocabulary's dtype, and each sentence's number of ids."""
        rounds = [self._encode_round(each) for each in _cut_rounds(sentences)]
        ids = np.concatenate([np.zeros(0, self.vocab.dtype), *(ids for ids, _ in rounds)])
        lengths = np.concatenate([np.zeros(0, np.uint32), *(lengths for _, lengths in rounds)])
        return ids, lengths

    def _encode_round(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        data = _join_lines(sentences).translate(self._byte_table, delete=_DROPPED_CONTROLS)
        starts = self._find_chunks(np.frombuffer(data, np.uint8))
        numbers, chunks = _number_chunks(data, starts)
        distinct_ids = self._look_up(chunks)
        distinct_sizes = np.fromiter(map(len, distinct_ids), np.int32, len(chunks)) // self.vocab.dtype.itemsize
        sizes = distinct_sizes[numbers]
        ends = np.cumsum(sizes, dtype=np.int32)
        # Each chunk's ids lie further on in the result than in the ids of the distinct chunks, by this much.
        shifts = ends - sizes - (np.cumsum(distinct_sizes, dtype=np.int32) - distinct_sizes)[numbers]
        places = np.arange(ends[-1] if len(ends) else 0, dtype=np.int32)
        places -= np.repeat(shifts, sizes)
        ids = np.frombuffer(b"".join(distinct_ids), self.vocab.dtype)[places]
        is_newline = np.frombuffer(data, np.uint8)[starts] == _NEWLINE
        return ids, np.diff(ends[is_newline], prepend=0).astype(np.uint32)

    def _find_chunks(self, data: NDArray[np.uint8]) -> NDArray[np.intp]:
        """Positions at which chunks start."""
        stands_alone, is_space = self._stands_alone[data], data == _SPACE
        starts = ~is_space
        starts[1:] &= stands_alone[1:] | stands_alone[:-1] | is_space[:-1]
        return np.flatnonzero(starts)

    def _look_up(self, chunks: list[bytes]) -> list[bytes]:
        """Ids of distinct chunks, as bytes; remembers those of short ones."""
        known = self._chunk_ids
        found = [known.get(chunk) for chunk in chunks]
        missing = [index for index, ids in enumerate(found) if ids is None]
        new = list(dict.fromkeys(chunks[index] for index in missing))
        matched = dict(zip(new, self._matcher.match_chunks(new), strict=True))
        for index in missing:
            found[index] = matched[chunks[index]]
        known.update((chunk, ids) for chunk, ids in matched.items() if len(chunk) <= MAX_CACHED_CHUNK_BYTES)
        if len(known) > MAX_CACHED_CHUNKS:
            known.clear()
        return cast(list[bytes], found)


class _ChunkMatcher:
    """Finds the ids of chunks the slow way; ids, and the UTF-8 of the pieces they stand for, are bytes."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        id_bytes = _id_bytes(vocab)
        pieces = list(zip(vocab.tokens, id_bytes, strict=True))
        self._first_pieces = {token.encode(): ids for token, ids in pieces}
        self._other_pieces = {t.removeprefix(CONTINUATION).encode(): i for t, i in pieces if t.startswith(CONTINUATION)}
        self._max_piece_bytes = max(map(len, self._first_pieces))
        self._unknown = id_bytes[vocab.unk_id]
        self._normalize = build_normalizer(lower_case).normalize_str
        self._split_words = build_pre_tokenizer().pre_tokenize_str
        self._normalized_ids: dict[bytes, bytes] = {}

    def match_chunks(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Ids of chunks: ASCII without case, controls and punctuation, or any text without ASCII spaces inside."""
        found = [self._match_word(chunk.strip()) if chunk.isascii() else b"" for chunk in chunks]
        foreign = [index for index, chunk in enumerate(chunks) if not chunk.isascii()]
        for index, normalized in zip(foreign, self._normalize_chunks([chunks[each] for each in foreign]), strict=True):
            found[index] = b"".join(map(self._match_normalized, normalized.split()))
        if len(self._normalized_ids) > MAX_CACHED_CHUNKS:
            self._normalized_ids.clear()
        return found

    def _normalize_chunks(self, chunks: Sequence[bytes]) -> Iterator[bytes]:
        """Each chunk's text as the library normalises it, many in one call, because a call costs as much as a line."""
        for start in range(0, len(chunks), _CHUNKS_A_CALL):
            some = chunks[start : start + _CHUNKS_A_CALL]
            yield from self._normalize(_CHUNK_MARK.join(some).decode()).encode().split(_CHUNK_MARK)

    def _match_normalized(self, chunk: bytes) -> bytes:
        """Ids of normalised text without spaces, which punctuation may still be part of."""
        ids = self._normalized_ids.get(chunk)
        if ids is None:
            words = self._split_words(chunk.decode())
            ids = b"".join([self._match_word(word.encode()) for word, _ in words])
            if len(chunk) <= MAX_CACHED_CHUNK_BYTES:
                self._normalized_ids[chunk] = ids
        return ids

    def _match_word(self, word: bytes) -> bytes:
        """Greedy longest match; as pieces are whole characters, so is what is left of the word after each."""
        if len(word) > MAX_WORD_CHARACTERS and len(word.decode()) > MAX_WORD_CHARACTERS:
            return self._unknown
        found, pieces = b"", self._first_pieces
        while word:
            piece = word[: self._max_piece_bytes]
            while (ids := pieces.get(piece)) is None:
                piece = piece[:-1]
                if not piece:
                    return self._unknown
            found += ids
            word, pieces = word[len(piece) :], self._other_pieces
        return found


def _id_bytes(vocab: Vocabulary) -> list[bytes]:
    """Each id as the bytes of the vocabulary's dtype."""
    return [index.tobytes() for index in np.arange(len(vocab), dtype=vocab.dtype)]


def _byte_table(lower_case: bool) -> bytes:
    """For bytes.translate: tab and carriage return to space, and if `lower_case` A-Z to a-z."""
    source, target = b"\t\r", b"  "
    if lower_case:
        source, target = source + string.ascii_uppercase.encode(), target + string.ascii_lowercase.encode()
    return bytes.maketrans(source, target)


def _cut_rounds(sentences: Sequence[str]) -> Iterator[Sequence[str]]:
    """Runs of sentences that begin within the same CHARACTERS_AT_ONCE."""
    ends = np.cumsum(np.fromiter(map(len, sentences), np.int64, len(sentences)))
    firsts = np.flatnonzero(np.diff(ends // CHARACTERS_AT_ONCE, prepend=-1)).tolist()
    for first, last in pairwise([*firsts, len(sentences)]):
        yield sentences[first:last]


def _join_lines(sentences: Sequence[str]) -> bytes:
    """UTF-8 of the sentences, each a line of its own; a newline inside one is white space, and becomes a space."""
    text = "\n".join([*sentences, ""])
    if text.count("\n") != len(sentences):
        text = "\n".join([*(sentence.replace("\n", " ") for sentence in sentences), ""])
    return text.encode()


def _number_chunks(data: bytes, starts: NDArray[np.intp]) -> tuple[NDArray[np.int32], list[bytes]]:
    """For each chunk the number of a distinct one, and the distinct ones without the space at their end."""
    offsets = np.append(starts, len(data)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    encoded = pa.Array.from_buffers(pa.binary(), len(starts), buffers).dictionary_encode()
    _, bounds, content = encoded.dictionary.buffers()
    distinct = content.to_pybytes()
    ends = np.frombuffer(bounds, np.int32, len(encoded.dictionary) + 1)
    stops = ends[1:] - (np.frombuffer(distinct, np.uint8)[ends[1:] - 1] == _SPACE)
    chunks = [distinct[start:stop] for start, stop in zip(ends[:-1].tolist(), stops.tolist(), strict=True)]
    return encoded.indices.to_numpy(), chunks
