"""Text to arrays of ids, as fast as plain Python goes: what the pipeline runs on the whole corpus.

The ids are those of `tokenizers.Tokenizer.from_file("tokenizer.json")` with `encode_special_tokens = True`, on every
text (docs/parity.md 3): "[MASK]" in a text is three words, and no special id but [UNK]'s comes out of one.

How it goes, for NUM_SENTENCES_AT_ONCE sentences at a time:
1. Sentences are joined into UTF-8 bytes, a newline after each. One `translate` lowers ASCII letters, turns tab and
   carriage return into spaces, drops other ASCII controls, and makes the newlines NUL, which is now in no sentence.
2. Spaces are put around ASCII punctuation: each such character is a word of its own wherever it stands.
3. Split at spaces, the bytes are chunks, and a dict gives each chunk's ids as bytes. NUL's is [SEP], which no text
   yields. Joined, they are one array; [SEP] is then cut out, and where it stood the sentences ended.
4. A chunk the dict lacks is one ASCII word, or has other characters. The latter are normalised by the library, whose
   Unicode tables are the standard here, and go through a second dict (a Chinese chunk has become many), then through
   its word splitter. Words are matched with the vocabulary by us.

May import the standard library, numpy, tokenizers, and this room's modules.
"""

import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenizer.export import build_normalizer, build_pre_tokenizer
from tokenizer.vocab import CONTINUATION, Vocabulary
from tokenizer.wordpiece import MAX_WORD_CHARACTERS

IdArray = NDArray[np.unsignedinteger]

NUM_SENTENCES_AT_ONCE = 128
"""Enough to make the cost of a call small, few enough that their chunks stay in the processor's cache."""

MAX_CACHED_CHUNKS = 1 << 18
"""When the cache holds this many chunks it is emptied: new chunks never cease, and common ones are back at once."""

MAX_CACHED_CHUNK_BYTES = 64
"""Longer chunks (Chinese sentences, long URLs) hardly return and are not cached; together a bound on memory."""

_SENTENCE_END = b"\0"
_SPACED_PUNCTUATION = [(c.encode(), f" {c} ".encode()) for c in string.punctuation]
_CONTROLS = bytes([*range(0x20), 0x7F])
_DROPPED_CONTROLS = _CONTROLS.translate(None, delete=b"\t\n\r")


class Encoder:
    """Encodes sentences with one vocabulary; pickled as its two arguments, without its cache."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        self.vocab = vocab
        self.lower_case = lower_case
        self._byte_table = _byte_table(lower_case)
        sentence_end = {_SENTENCE_END: _id_bytes(vocab)[vocab.sep_id]}
        self._chunk_ids = _ChunkCache(sentence_end, _ChunkMatcher(vocab, lower_case).match_chunk)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[Vocabulary, bool]]:
        return Encoder, (self.vocab, self.lower_case)

    def encode(self, text: str) -> IdArray:
        """Ids of a text, of the vocabulary's dtype; no [CLS] or [SEP] added."""
        return self.encode_sentences([text])[0]

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Ids of all sentences one after the other, of the vocabulary's dtype, and each sentence's number of ids."""
        starts = range(0, len(sentences), NUM_SENTENCES_AT_ONCE)
        groups = [self._encode_group(sentences[start : start + NUM_SENTENCES_AT_ONCE]) for start in starts]
        ids = np.frombuffer(b"".join(groups), self.vocab.dtype)
        is_end = ids == self.vocab.sep_id
        return ids[~is_end], _lengths_between(np.flatnonzero(is_end))

    def _encode_group(self, sentences: Sequence[str]) -> bytes:
        """Ids, as bytes, of sentences, [SEP]'s after each."""
        spaced = _join_lines(sentences).translate(self._byte_table, delete=_DROPPED_CONTROLS)
        for mark, spaced_mark in _SPACED_PUNCTUATION:
            spaced = spaced.replace(mark, spaced_mark)
        return b"".join(map(self._chunk_ids.__getitem__, spaced.split()))


class _ChunkCache(dict[bytes, bytes]):
    """Ids, as bytes, of fixed chunks and of chunks already seen; asks `match_chunk` for others."""

    def __init__(self, fixed: Mapping[bytes, bytes], match_chunk: Callable[[bytes], bytes]) -> None:
        super().__init__(fixed)
        self._fixed = fixed
        self._match_chunk = match_chunk

    def __missing__(self, chunk: bytes) -> bytes:
        ids = self._match_chunk(chunk)
        if len(chunk) <= MAX_CACHED_CHUNK_BYTES:
            if len(self) >= MAX_CACHED_CHUNKS:
                self.clear()
                self.update(self._fixed)
            self[chunk] = ids
        return ids


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
        self._normalized_ids = _ChunkCache({}, self._match_normalized)

    def match_chunk(self, chunk: bytes) -> bytes:
        """Ids of a chunk: ASCII without case, controls and punctuation, or any text without spaces."""
        if chunk.isascii():
            return self._match_word(chunk)
        normalized = self._normalize(chunk.decode()).encode()
        return b"".join(map(self._normalized_ids.__getitem__, normalized.split()))

    def _match_normalized(self, chunk: bytes) -> bytes:
        """Ids of normalised text without spaces, which punctuation may still be part of."""
        words = self._split_words(chunk.decode())
        return b"".join([self._match_word(word.encode()) for word, _ in words])

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
    """For bytes.translate: newline to NUL, tab and carriage return to space, and if `lower_case` A-Z to a-z."""
    source, target = b"\n\t\r", _SENTENCE_END + b"  "
    if lower_case:
        source, target = source + string.ascii_uppercase.encode(), target + string.ascii_lowercase.encode()
    return bytes.maketrans(source, target)


def _join_lines(sentences: Sequence[str]) -> bytes:
    """UTF-8 of the sentences, each a line of its own; a newline inside one is white space, and becomes a space."""
    text = " \n ".join([*sentences, ""])
    if text.count("\n") != len(sentences):
        text = " \n ".join([*(sentence.replace("\n", " ") for sentence in sentences), ""])
    return text.encode()


def _lengths_between(ends: NDArray[np.intp]) -> NDArray[np.uint32]:
    """Numbers of elements before, and between, the positions of the sentence ends."""
    return (np.diff(ends, prepend=-1) - 1).astype(np.uint32)
