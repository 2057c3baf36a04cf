"""Chunks of text to ids, many at a time: what the encoder asks about those that it has not met."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import filterfalse

import numpy as np

from tokenizer.export import build_normalizer, build_pre_tokenizer
from tokenizer.vocab import CONTINUATION, Vocabulary
from tokenizer.wordpiece import MAX_WORD_CHARACTERS

MAX_CACHED_PARTS = 1 << 17
"""When so many parts of normalised text are known they are forgotten: a bound on memory."""

_SEPARATOR = "|"  # no chunk holds ASCII punctuation, and no normal form of another character is this one
_PREFIX_BYTES = 4


class ChunkMatcher:
    """Finds the ids of chunks with one vocabulary; ids, and the UTF-8 of the pieces they stand for, are bytes."""

    def __init__(self, vocab: Vocabulary, lower_case: bool) -> None:
        id_bytes: list[bytes] = [index.tobytes() for index in np.arange(len(vocab), dtype=vocab.dtype)]
        pieces = {token: ids for token, ids in zip(vocab.tokens, id_bytes, strict=True) if is_usable(token)}
        self._first_pieces = {token.encode(): ids for token, ids in pieces.items()}
        self._other_pieces = {
            token.removeprefix(CONTINUATION).encode(): ids
            for token, ids in pieces.items()
            if token.startswith(CONTINUATION)
        }
        self._longest_first, self._longest_other = _longest(self._first_pieces), _longest(self._other_pieces)
        self._ascii_words = {piece: ids for piece, ids in self._first_pieces.items() if piece.isascii()}
        self._unknown = id_bytes[vocab.unk_id]
        self._normalize: Callable[[str], str] = build_normalizer(lower_case).normalize_str
        self._split_words = build_pre_tokenizer().pre_tokenize_str
        self._part_ids: dict[bytes, bytes] = {}

    def match(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Ids of each chunk: ASCII without controls, and punctuation only by itself, or any text without spaces."""
        found = list(map(self._ascii_words.get, chunks))
        missing = [index for index, ids in enumerate(found) if ids is None]
        others = []
        for index in missing:
            if chunks[index].isascii():
                found[index] = self._match_word(chunks[index])
            else:
                others.append(index)
        if others:
            for index, ids in zip(others, self._match_others([chunks[index] for index in others]), strict=True):
                found[index] = ids
        return [ids for ids in found if ids is not None]

    def _match_others(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Normalised by the library, whose Unicode tables are the standard; a Chinese chunk becomes many parts."""
        normalized = self._normalize(f" {_SEPARATOR} ".join(chunk.decode() for chunk in chunks)).encode()
        parts = [chunk.split() for chunk in normalized.split(_SEPARATOR.encode())]
        assert len(parts) == len(chunks), "the normaliser made a separator"
        if len(self._part_ids) > MAX_CACHED_PARTS:
            self._part_ids.clear()
        distinct = dict.fromkeys(part for chunk in parts for part in chunk)
        self._match_parts(list(filterfalse(self._part_ids.__contains__, distinct)))
        return [b"".join(map(self._part_ids.__getitem__, chunk)) for chunk in parts]

    def _match_parts(self, parts: Sequence[bytes]) -> None:
        """Learns the ids of normalised text without spaces, which punctuation may still be part of."""
        words = self._split_words(f" {_SEPARATOR} ".join(part.decode() for part in parts))
        found = [b""]
        for word, _ in words:
            if word == _SEPARATOR:
                found.append(b"")
            else:
                found[-1] += self._match_word(word.encode())
        self._part_ids.update(zip(parts, found, strict=bool(parts)))

    def _match_word(self, word: bytes) -> bytes:
        """Greedy longest match; as pieces are whole characters, so is what is left of the word after each."""
        if len(word) > MAX_WORD_CHARACTERS and len(word.decode()) > MAX_WORD_CHARACTERS:
            return self._unknown
        found, pieces, longest = b"", self._first_pieces, self._longest_first
        while word:
            piece = word[: longest.get(word[:_PREFIX_BYTES], _PREFIX_BYTES - 1)]
            while (ids := pieces.get(piece)) is None:
                piece = piece[:-1]
                if not piece:
                    return self._unknown
            found += ids
            word, pieces, longest = word[len(piece) :], self._other_pieces, self._longest_other
        return found


def is_usable(token: str) -> bool:
    """No word is that long: only its being left out keeps a word of the vocabulary from being found."""
    return len(token.removeprefix(CONTINUATION)) <= MAX_WORD_CHARACTERS


def _longest(pieces: Iterable[bytes]) -> Mapping[bytes, int]:
    """Bytes of the longest piece with each beginning: where to start looking."""
    longest: dict[bytes, int] = {}
    for piece in pieces:
        longest[piece[:_PREFIX_BYTES]] = max(len(piece), longest.get(piece[:_PREFIX_BYTES], 0))
    return longest
