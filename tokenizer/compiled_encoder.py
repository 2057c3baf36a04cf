"""Text to arrays of ids by the compiled matcher: the ids of `tokenizer.encode.LibraryEncoder`, sooner.

How it goes:
1. `Matcher.find_new` looks for characters that are not ASCII and were never met. What each becomes
   (its form) is asked of the library, whose Unicode tables are the standard here, and told to the
   matcher: "é" is "e", "中" is " 中 ", a space on each side since it is a word of its own.
2. `Matcher.encode` takes each sentence byte by byte: ASCII by a table, other characters by their
   forms, words by a trie with failure links (LinMaxMatch), in one go and without the interpreter's
   lock.
3. A chunk (what stands between ASCII spaces and punctuation) may hold a character that has no form
   of its own, since its neighbours decide. It comes back with its place, and the library encodes
   it.
"""

import string
import unicodedata
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tokenizer.export import build_normalizer, build_pre_tokenizer
from tokenizer.vocab import CONTINUATION, IdArray, Vocabulary
from tokenizer.wordpiece import MAX_WORD_CHARACTERS

Encode = Callable[[Sequence[str]], tuple[IdArray, NDArray[np.uint32]]]

_NEIGHBOUR, _SEPARATOR = "a", "|"  # no form holds ASCII punctuation but as the only character
_SPACE, _MARK, _DROPPED, _PART = range(4)  # as in native/sentences.h


class CompiledEncoder:
    """Encodes sentences with one vocabulary."""

    def __init__(
        self, module: ModuleType, vocab: Vocabulary, lower_case: bool, encode_others: Encode
    ) -> None:
        """Builds the trie of `tokenizer._matcher`; `encode_others` encodes the chunks that it leaves.

        Raises OverflowError where it would be too large, which takes a vocabulary made for that.
        """
        self._vocab = vocab
        self._lower_case = lower_case
        self._encode_others = encode_others
        self._matcher = module.Matcher(
            *_sort_pieces(vocab, continuing=False),
            *_sort_pieces(vocab, continuing=True),
            _kinds(lower_case),
            vocab.unk_id,
            MAX_WORD_CHARACTERS,
        )
        self._normalize = build_normalizer(lower_case).normalize_str
        self._split_words = build_pre_tokenizer().pre_tokenize_str

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """As `tokenizer.encode.Encoder` has it."""
        if new := self._matcher.find_new(sentences):
            self._matcher.learn(new, self._find_forms(new))
        id_bytes, length_bytes, left = self._matcher.encode(sentences, self._vocab.dtype.itemsize)
        ids = np.frombuffer(id_bytes, self._vocab.dtype)
        lengths = np.frombuffer(length_bytes, np.uint32)
        return self._insert(ids, lengths, left) if left else (ids, lengths)

    def _find_forms(self, characters: str) -> list[bytes | None]:
        """What each character is among letters; None where its neighbours matter."""
        joined = _SEPARATOR.join(f"{_NEIGHBOUR}{character}{_NEIGHBOUR}" for character in characters)
        words = [word for word, _ in self._split_words(self._normalize(joined))]
        forms = [form.strip(" ") for form in " ".join(words).split(_SEPARATOR)]
        assert len(forms) == len(characters), "the normaliser made a separator"
        return [
            None if self._is_contextual(character, form) else form[1:-1].encode()
            for character, form in zip(characters, forms, strict=True)
        ]

    def _is_contextual(self, character: str, form: str) -> bool:
        """Whether canonical ordering may move what is left of a character, or this Python's tables lack it."""
        is_moved = any(map(unicodedata.combining, form))
        return self._lower_case and (is_moved or unicodedata.category(character) == "Cn")

    def _insert(
        self, ids: IdArray, lengths: NDArray[np.uint32], left: Sequence[tuple[int, int, bytes]]
    ) -> tuple[IdArray, NDArray[np.uint32]]:
        """Puts the ids of chunks where they belong; `left` says before which id, in which sentence, and the chunk."""
        places, numbers, chunks = zip(*left, strict=True)
        added, counts = self._encode_others([chunk.decode() for chunk in chunks])
        np.add.at(lengths, list(numbers), counts)
        return np.insert(ids, np.repeat(places, counts), added), lengths


def _sort_pieces(vocab: Vocabulary, *, continuing: bool) -> tuple[list[bytes], NDArray[np.uint32]]:
    """Pieces that begin a word, or those that continue one without their prefix, in order of their bytes; and ids.

    A piece longer than any word is left out, as else a word beyond the limit could be found.
    """
    prefix = CONTINUATION if continuing else ""
    pieces = sorted(
        (token.removeprefix(prefix).encode(), index)
        for index, token in enumerate(vocab.tokens)
        if token.startswith(CONTINUATION) == continuing
        and token != CONTINUATION
        and len(token.removeprefix(CONTINUATION)) <= MAX_WORD_CHARACTERS
    )
    return [piece for piece, _ in pieces], np.array([index for _, index in pieces], np.uint32)


def _kinds(lower_case: bool) -> bytes:
    """The kind of each byte; for bytes of an ASCII word, the byte that is matched."""
    kinds = [_DROPPED] * 0x80 + [_PART] * 0x80
    for byte in b" \t\n\r":
        kinds[byte] = _SPACE
    for byte in string.punctuation.encode():
        kinds[byte] = _MARK
    for byte in (string.ascii_letters + string.digits).encode():
        kinds[byte] = ord(chr(byte).lower()) if lower_case else byte
    return bytes(kinds)
