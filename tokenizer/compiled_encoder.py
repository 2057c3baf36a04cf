"""Encodes text by the compiled matcher, to the same ids as `LibraryEncoder`, but faster.

1. `Matcher.encode` reads each sentence byte by byte: ASCII by a table, other characters by their
   forms, and words by a trie with failure links (LinMaxMatch). A form is the text by which the
   library `tokenizers` replaces a character: "e" for "é", and " 中 " for "中", which is a word by
   itself. The Unicode tables of the library are the standard here.
2. A chunk is the text between ASCII spaces and punctuation. The matcher does not encode a chunk
   with a character whose form it does not know. It returns this chunk, and the position at which
   its ids belong. `CompiledEncoder` asks the library for the forms of these characters, tells them
   to the matcher, and lets it encode the returned chunks.
3. The form of some characters depends on their neighbours, so the matcher is never told one. It
   returns chunks with such characters a second time, and the library encodes them.
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

# To find the forms of characters, each is put between two neighbours, and separators between them.
# No form contains the separator, except that of the separator itself: it is ASCII punctuation.
_NEIGHBOUR = "a"
_SEPARATOR = "|"

# Kinds of bytes, the same as in native/sentences.h.
_SPACE = 0  # ends a word
_MARK = 1  # ASCII punctuation, a word by itself
_DROPPED = 2
_PART = 3  # belongs to a character that is replaced by its form


class CompiledEncoder:
    """Encodes sentences with one vocabulary by the compiled matcher."""

    def __init__(
        self, module: ModuleType, vocab: Vocabulary, rule: WordRule, encode_others: Encode
    ) -> None:
        """Builds the trie of the vocabulary.

        Args:
            module: The compiled module `tokenizer._matcher`.
            vocab: The vocabulary.
            rule: The rule by which a text becomes words.
            encode_others: Encodes a list of chunks that the matcher cannot encode, and returns
                their ids and lengths as `encode_sentences` does.

        Raises:
            OverflowError: The trie would be too large, which no ordinary vocabulary causes.
        """
        self._dtype = vocab.dtype
        self._rule = rule
        self._encode_others = encode_others
        pieces, ids, num_first = _sort_pieces(vocab)
        self._matcher = module.Matcher(
            pieces, ids, num_first, _kinds(rule), vocab.unk_id, MAX_WORD_CHARACTERS
        )
        self._known = set(map(chr, range(0x80)))  # characters whose forms have been looked for

    def encode_sentences(self, sentences: Sequence[str]) -> tuple[IdArray, NDArray[np.uint32]]:
        """Returns the ids of all sentences in one array, and the number of ids of each sentence.

        Raises:
            UnicodeEncodeError: A sentence has half of a surrogate pair.
        """
        return self._match(sentences, self._learn_and_match)

    def _match(
        self, texts: Sequence[str], encode_left: Encode
    ) -> tuple[IdArray, NDArray[np.uint32]]:
        """Encodes texts by the matcher, except chunks with characters whose form it does not know.

        These chunks are encoded by `encode_left`, and their ids are inserted among the others.

        Args:
            texts: Sentences or chunks.
            encode_left: Encodes a list of chunks, and returns their ids and lengths.

        Returns:
            The ids of all texts in one array, and the number of ids of each text.
        """
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
        """Encodes chunks by the matcher, after telling it the forms of their new characters.

        The library encodes the chunks that the matcher still cannot encode.
        """
        new = "".join({*"".join(chunks)} - self._known)
        self._known.update(new)
        for character, form in zip(new, self._find_forms(new) if new else (), strict=True):
            if form is not None:
                self._matcher.learn(ord(character), form)
        return self._match(chunks, self._encode_others)

    def _find_forms(self, characters: str) -> list[bytes | None]:
        """Returns the form of each character; None if it depends on the character's neighbours."""
        joined = _SEPARATOR.join(f"{_NEIGHBOUR}{character}{_NEIGHBOUR}" for character in characters)
        words = self._rule.split(joined)
        forms = [form.strip(" ") for form in " ".join(words).split(_SEPARATOR)]
        assert len(forms) == len(characters), "the normaliser made a separator"
        found: list[bytes | None] = []
        for character, form in zip(characters, forms, strict=True):
            # Canonical ordering may move combining characters that stay in a form. The category Cn
            # says that this Python's Unicode tables do not know the character.
            has_combining = any(map(unicodedata.combining, form))
            is_uncertain = has_combining or unicodedata.category(character) == "Cn"
            if self._rule.lower_case and is_uncertain:
                found.append(None)
            else:
                found.append(form[1:-1].encode())
        return found


def _sort_pieces(vocab: Vocabulary) -> tuple[list[bytes], NDArray[np.uint32], int]:
    """Sorts the pieces of a vocabulary for the matcher.

    Pieces longer than MAX_WORD_CHARACTERS are left out, because no word is that long.

    Returns:
        The pieces that begin words and then those that continue words, both sorted by their bytes
            and without "##"; the id of each piece; and the number of pieces that begin words.
    """
    rows = []
    for index, token in enumerate(vocab.tokens):
        piece = token.removeprefix(CONTINUATION)
        if piece and len(piece) <= MAX_WORD_CHARACTERS:
            rows.append((token != piece, piece.encode(), index))
    continues, pieces, ids = zip(*sorted(rows), strict=True)
    return list(pieces), np.array(ids, np.uint32), continues.count(False)


def _kinds(rule: WordRule) -> bytes:
    """Returns the matcher's table of 256 bytes, which says how each byte of a text is treated.

    An entry from 0 to 3 is a kind, such as _SPACE. A higher entry means that the byte is part of an
    ASCII word, and is itself the byte that is matched: the entry of "A" is "a" if words are
    lower-cased.

    By the rule "whitespace", every ASCII byte but white space is part of a word and is matched
    unchanged. The bytes 0 to 3 are an exception, because these numbers mean kinds. Their entry is
    _PART, so the library encodes the words that contain them.
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
