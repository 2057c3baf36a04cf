"""Text to arrays of ids by the compiled matcher: those of `LibraryEncoder`, sooner.

1. `Matcher.encode` takes each sentence byte by byte: ASCII by a table, other characters by their
   forms, words by a trie with failure links (LinMaxMatch). A form is what the library, whose
   Unicode tables are the standard here, makes of a character: of "é" "e", of "中", a word, " 中 ".
2. A chunk (what stands between ASCII spaces and punctuation) comes back with its place if it holds
   a character without a form. Forms of new characters are learned, and the chunks taken again.
3. What is left then has characters whose neighbours decide: the library encodes these chunks.
"""

import string
import unicodedata
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tokenizer.vocab import CONTINUATION, IdArray, Vocabulary
from tokenizer.word_rule import WordRule
from tokenizer.wordpiece import MAX_WORD_CHARACTERS

Encode = Callable[[Sequence[str]], tuple[IdArray, NDArray[np.uint32]]]

_NEIGHBOUR, _SEPARATOR = "a", "|"  # no form holds ASCII punctuation but as the only character
_SPACE, _MARK, _DROPPED, _PART = range(4)  # as in native/sentences.h


class CompiledEncoder:
    """Encodes sentences with one vocabulary."""

    def __init__(
        self, module: ModuleType, vocab: Vocabulary, rule: WordRule, encode_others: Encode
    ) -> None:
        """Builds the trie of `tokenizer._matcher`; `encode_others` encodes the chunks it leaves.

        Raises OverflowError where it would be too large, which takes a vocabulary made for that.
        """
        self._dtype = vocab.dtype
        self._rule = rule
        self._encode_others = encode_others
        pieces, ids, num_first = _sort_pieces(vocab)
        limits = vocab.unk_id, MAX_WORD_CHARACTERS
        self._matcher = module.Matcher(pieces, ids, num_first, _kinds(rule), *limits)
        self._met = set(map(chr, range(0x80)))

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """As `tokenizer.encode.Encoder` has it."""
        return self._match(sentences, self._learn_and_match)

    def _match(
        self, texts: Sequence[str], encode_left: Encode
    ) -> tuple[IdArray, NDArray[np.uint32]]:
        id_bytes, length_bytes, left = self._matcher.encode(texts)
        ids = np.frombuffer(id_bytes, np.uint32).astype(self._dtype)
        lengths = np.frombuffer(length_bytes, np.uint32)
        if not left:
            return ids, lengths
        places, numbers, chunks = zip(*left, strict=True)
        added, counts = encode_left([chunk.decode() for chunk in chunks])
        more = np.bincount(numbers, counts, len(lengths)).astype(np.uint32)
        return np.insert(ids, np.repeat(places, counts), added), lengths + more

    def _learn_and_match(self, chunks: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Tells the matcher the forms of characters that are met first, then encodes."""
        new = "".join({*"".join(chunks)} - self._met)
        self._met.update(new)
        for character, form in zip(new, self._find_forms(new) if new else (), strict=True):
            if form is not None:
                self._matcher.learn(ord(character), form)
        return self._match(chunks, self._encode_others)

    def _find_forms(self, characters: str) -> list[bytes | None]:
        """What each character is among letters; None where its neighbours matter."""
        joined = _SEPARATOR.join(f"{_NEIGHBOUR}{character}{_NEIGHBOUR}" for character in characters)
        words = self._rule.split(joined)
        forms = [form.strip(" ") for form in " ".join(words).split(_SEPARATOR)]
        assert len(forms) == len(characters), "the normaliser made a separator"
        found: list[bytes | None] = []
        for character, form in zip(characters, forms, strict=True):
            # Canonical ordering may move what is left, or this Python's tables lack it.
            is_open = (
                any(map(unicodedata.combining, form)) or unicodedata.category(character) == "Cn"
            )
            found.append(None if self._rule.lower_case and is_open else form[1:-1].encode())
        return found


def _sort_pieces(vocab: Vocabulary) -> tuple[list[bytes], NDArray[np.uint32], int]:
    """Pieces that begin words, then those that continue them, by bytes; ids; number of the first.

    A piece longer than any word is left out, as else a word beyond the limit could be found.
    """
    rows = []
    for index, token in enumerate(vocab.tokens):
        piece = token.removeprefix(CONTINUATION)
        if piece and len(piece) <= MAX_WORD_CHARACTERS:
            rows.append((token != piece, piece.encode(), index))
    continues, pieces, ids = zip(*sorted(rows), strict=True)
    return list(pieces), np.array(ids, np.uint32), continues.count(False)


def _kinds(rule: WordRule) -> bytes:
    """Returns the kind of each of the 256 bytes, as the matcher takes them.

    For a byte of an ASCII word it is the byte to be matched in its place. If words stay as they
    are, the four bytes whose values are used up by kinds cannot be matched, and `tokenizers`
    encodes the words that hold them.
    """
    if rule.keeps_words:
        first_word_byte = _PART + 1
        kinds = [_PART] * first_word_byte + list(range(first_word_byte, 0x80)) + [_PART] * 0x80
        for byte in b" \t\n\v\f\r":
            kinds[byte] = _SPACE
        return bytes(kinds)
    kinds = [_DROPPED] * 0x80 + [_PART] * 0x80
    for byte in b" \t\n\r":
        kinds[byte] = _SPACE
    for byte in string.punctuation.encode():
        kinds[byte] = _MARK
    for byte in (string.ascii_letters + string.digits).encode():
        kinds[byte] = ord(chr(byte).lower()) if rule.lower_case else byte
    return bytes(kinds)
