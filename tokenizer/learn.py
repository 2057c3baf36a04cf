"""Learns a WordPiece vocabulary from word counts; the order of the words does not matter.

Shapes: P positions, the characters of all words with a boundary before, between and after them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer.merges import BOUNDARY, PairMerger
from tokenizer.vocab import CLS, CONTINUATION, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, Vocabulary
from tokenizer.wordpiece import MAX_WORD_CHARACTERS

MAX_ALPHABET = 1000
"""The default size of the alphabet, the commonest characters.

A word with another character becomes [UNK], and nothing is learned from it.
"""

_NEWLINE = ord("\n")
_OTHER = -1  # the number of a character that is not in the alphabet
Array = NDArray[Any]


def learn_vocabulary(
    words: Sequence[str],
    counts: Sequence[int] | Array,
    vocab_size: int,
    num_unused: int = 0,
    alphabet_size: int = MAX_ALPHABET,
) -> Vocabulary:
    """Learns a vocabulary of `vocab_size` tokens by byte-pair merges.

    Its tokens are, in this order: [PAD], [unused0] ..., [UNK], [CLS], [SEP], [MASK]; the characters
    of the alphabet, by code point; the characters that continue words, with "##", by code point;
    the merges in the order in which they were made. A merge joins the commonest pair of
    neighbouring pieces wherever it occurs; among equally common pairs the first by code points is
    taken.

    If every word has become one piece before there are `vocab_size` tokens, merging ends, and the
    vocabulary has fewer tokens.

    Args:
        words: Distinct words, as the normaliser and the pre-tokeniser yield them, in any order. A
            word longer than MAX_WORD_CHARACTERS is left out, because every encoder makes [UNK] of
            it. So is a word that begins like a special token or a continuation, which occurs only
            if words stay as they are in the text.
        counts: How often each word occurs.
        vocab_size: The number of tokens.
        num_unused: The number of [unusedN]. BERT's own vocabularies have 99.
        alphabet_size: The most characters of the alphabet, the commonest ones.

    Raises:
        ValueError: The special tokens and the alphabet alone have more than `vocab_size` tokens.
    """
    specials = _specials(num_unused)
    merger = _start_merging(words, np.asarray(counts, np.int64), alphabet_size)
    num_fixed = len(specials) + len(merger.pieces)
    if num_fixed > vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {len(specials)} special and unused tokens and"
            f" the text's alphabet alone make {num_fixed}; raise vocab_size, or lower"
            f" num_unused={num_unused} or alphabet_size={alphabet_size}"
        )
    merger.merge_until(vocab_size - len(specials))
    return Vocabulary((*specials, *merger.pieces))


def learn_words(
    words: Sequence[str], counts: Sequence[int] | Array, vocab_size: int, num_unused: int = 0
) -> Vocabulary:
    """Returns a vocabulary of whole words, the commonest first.

    Equally common words are in the order of their code points. WordPiece makes [UNK] of every word
    that is not in the vocabulary, because no entry continues a word.

    Args:
        words: Distinct words. Words that `learn_vocabulary` leaves out (`can_be_learned`) are left
            out here too.
        counts: How often each word occurs.
        vocab_size: The most tokens.
        num_unused: The number of [unusedN].
    """
    specials = _specials(num_unused)
    pairs = zip(words, np.asarray(counts, np.int64).tolist(), strict=True)
    learned = [(word, count) for word, count in pairs if can_be_learned(word)]
    ordered = sorted(learned, key=lambda pair: (-pair[1], pair[0]))
    most = max(0, vocab_size - len(specials))
    return Vocabulary((*specials, *(word for word, _ in ordered[:most])))


def _specials(num_unused: int) -> list[str]:
    """Returns the special and unused tokens with which a vocabulary begins, in BERT's order."""
    return [PAD, *(f"[unused{n}]" for n in range(num_unused)), UNK, CLS, SEP, MASK]


def can_be_learned(word: str) -> bool:
    """Returns whether a vocabulary may be learned from a word.

    It may not if the word is too long, or begins like a special token or with "##": then a piece of
    the word could be mistaken for a special token or for a continuation.
    """
    reserved = (CONTINUATION, "[unused", *SPECIAL_TOKENS)
    return len(word) <= MAX_WORD_CHARACTERS and not word.startswith(reserved)


def _start_merging(words: Sequence[str], counts: Array, alphabet_size: int) -> PairMerger:
    """Returns a `PairMerger` of the words, which are cut into single characters.

    Args:
        words: Distinct words.
        counts: How often each word occurs.
        alphabet_size: The most characters of the alphabet. Words with other characters are left
            out.
    """
    codes_P, weights_P = _lay_out(words, counts)
    alphabet, characters_P = _choose_alphabet(codes_P, weights_P, alphabet_size)
    is_bad_P = characters_P == _OTHER
    codes_P, weights_P, characters_P = _keep_words(is_bad_P, codes_P, weights_P, characters_P)

    is_boundary_P = codes_P == _NEWLINE
    continues_P = ~is_boundary_P
    continues_P[1:] &= continues_P[:-1]
    continuing = np.unique(characters_P[continues_P])
    # The id of a word's first character is its place in the alphabet. Continuing characters, with
    # "##", have the ids after the alphabet.
    continuation_ids = np.zeros(len(alphabet), np.int32)
    continuation_ids[continuing] = len(alphabet) + np.arange(len(continuing))
    symbols_P = characters_P.astype(np.int32)
    symbols_P[continues_P] = continuation_ids[characters_P[continues_P]]
    symbols_P[is_boundary_P] = BOUNDARY
    pieces = [*alphabet, *(CONTINUATION + alphabet[index] for index in continuing)]
    return PairMerger(symbols_P, weights_P, pieces)


def _lay_out(words: Sequence[str], counts: Array) -> tuple[Array, Array]:
    """Lays words end to end, with a newline as boundary before the first and after each word.

    Returns:
        [P] the code points, and [P] the count of the word that each position is in.
    """
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    is_learned = np.fromiter(map(can_be_learned, words), bool, len(words))
    learned = [word for word, keep in zip(words, is_learned.tolist(), strict=True) if keep]
    text = "\n".join(["", *learned, ""])
    codes_P = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    weights_P = np.concatenate([[0], np.repeat(counts[is_learned], lengths[is_learned] + 1)])
    if len(learned) == 0:
        codes_P = np.array([_NEWLINE], np.uint32)
        weights_P = weights_P[:1]
    assert len(codes_P) == len(weights_P), "a word holds a newline"
    return codes_P, weights_P


def _choose_alphabet(
    codes_P: Array, weights_P: Array, alphabet_size: int
) -> tuple[list[str], Array]:
    """Chooses the alphabet: the commonest characters.

    Returns:
        The alphabet, sorted by code point; and [P] int32, for each position the index of its
            character in the alphabet, or _OTHER if the alphabet lacks it. Boundaries have 0.
    """
    is_character_P = codes_P != _NEWLINE
    codes, inverse = np.unique(codes_P[is_character_P], return_inverse=True)
    # Float sums are exact below 2^53, far beyond the characters of any sample.
    totals = np.bincount(inverse, weights_P[is_character_P], minlength=len(codes))
    chosen = np.sort(np.lexsort((codes, -totals))[:alphabet_size])
    places = np.full(len(codes), _OTHER, np.int32)
    places[chosen] = np.arange(len(chosen))
    characters_P = np.zeros(len(codes_P), np.int32)
    characters_P[is_character_P] = places[inverse]
    return list(map(chr, codes[chosen].tolist())), characters_P


def _keep_words(is_bad_P: Array, codes_P: Array, *arrays_P: Array) -> tuple[Array, ...]:
    """Removes words with a character that is not in the alphabet from arrays.

    The boundary after such a word is removed too.

    Args:
        is_bad_P: Whether the character of each position is not in the alphabet.
        codes_P: The code point of each position; a newline is a boundary.
        arrays_P: More arrays with one entry per position, which are cut in the same way.

    Returns:
        `codes_P` and then `arrays_P`, without the entries of the removed words.
    """
    starts = np.concatenate([[0], np.flatnonzero(codes_P == _NEWLINE)[:-1] + 1])
    lengths = np.diff(starts, append=len(codes_P))
    is_kept_P = np.repeat(~np.logical_or.reduceat(is_bad_P, starts), lengths)
    return tuple(array[is_kept_P] for array in (codes_P, *arrays_P))
