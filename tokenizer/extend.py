"""Extends a released model's vocabulary by the pieces that save most tokens of a domain's text.

1. The text's words are cut into pieces of the old vocabulary. A character of a word that the old
   vocabulary lacks becomes a new piece.
2. Byte-pair merges of these pieces make longer new pieces: 1.5 times as many candidates as there is
   room for, and more if too few of them save tokens.
3. The words are cut again, with old and new pieces together. Each use of a new piece saves n - 1
   tokens, if it replaces n pieces of the old vocabulary and its missing characters. A missing
   character itself counts as saving one token per use, because its word was [UNK].
4. The new pieces that save most tokens are kept. They replace tokens [unusedN], and when there are
   no more of these, they are appended to the vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer.encode import Encoder
from tokenizer.learn import can_be_learned
from tokenizer.merges import BOUNDARY, PairMerger
from tokenizer.vocab import CONTINUATION, Vocabulary
from tokenizer.word_rule import UNCASED, WordRule
from tokenizer.wordpiece import split_piece

_CANDIDATES = 1.5
"""How many pieces are tried for each one that is kept.

With 2 or 4, text from which nothing was learned takes more tokens.
"""

Array = NDArray[Any]


def extend_vocabulary(
    old: Vocabulary,
    words: Sequence[str],
    counts: Sequence[int] | Array,
    vocab_size: int,
    num_unused: int = 0,
    rule: WordRule = UNCASED,
) -> Vocabulary:
    """Returns the old vocabulary with new pieces, which replace [unusedN] or are appended.

    All old tokens but the replaced [unusedN] keep their ids. No token is ever removed, even if the
    old vocabulary has more than `vocab_size`.

    Args:
        old: The vocabulary to extend.
        words: Distinct words, as `learn_vocabulary` takes them.
        counts: How often each word occurs.
        vocab_size: The most tokens of the result, unless the old vocabulary has more.
        num_unused: How many [unusedN] are not replaced: the last ones.
        rule: The rule by which a text becomes words.
    """
    places = [index for index, token in enumerate(old.tokens) if is_unused(token)]
    places = places[: max(0, len(places) - num_unused)]
    room = len(places) + max(0, vocab_size - len(old))
    is_learned = [can_be_learned(word) for word in words]
    learned_words = [word for word, learned in zip(words, is_learned, strict=True) if learned]
    counts_W = np.asarray(counts, np.int64)[np.array(is_learned, bool)]
    new = _choose_pieces(old, learned_words, counts_W, room, rule)

    tokens = list(old.tokens)
    for place, piece in zip(places, new, strict=False):
        tokens[place] = piece
    return Vocabulary((*tokens, *new[len(places) :]))


def is_unused(token: str) -> bool:
    """Returns whether a token is one of [unusedN], which are set aside for the user's words."""
    return token.startswith("[unused") and token.endswith("]")


def tokens_per_word(
    vocabulary: Vocabulary, words: Sequence[str], counts: Sequence[int], rule: WordRule
) -> float:
    """Returns the mean number of tokens of a word in a text; an [UNK] is one token.

    Args:
        vocabulary: The vocabulary.
        words: The distinct words of the text.
        counts: How often each word occurs.
        rule: The rule by which a text becomes words.
    """
    _, lengths = Encoder(vocabulary, rule).encode_sentences(words)
    return float(np.average(lengths, weights=np.asarray(counts)))


def _choose_pieces(
    old: Vocabulary, words: Sequence[str], counts_W: Array, num_pieces: int, rule: WordRule
) -> list[str]:
    """Returns the new pieces that save the most tokens, best first.

    Pieces that save equally many are sorted by code points.

    Args:
        old: The vocabulary to extend.
        words: W distinct words.
        counts_W: How often each word occurs.
        num_pieces: The most pieces to return.
        rule: The rule by which a text becomes words.
    """
    if not words or not num_pieces:
        return []
    spelling = Vocabulary((*old.tokens, *_missing_characters(old, words, rule)))
    merger = _start_merging(spelling, words, counts_W, rule)
    saved: dict[str, int] = {}
    target = num_pieces
    can_merge = True
    # Pieces that only lead to longer ones save nothing, so more may have to be merged.
    while len(saved) < num_pieces and can_merge:
        target = math.ceil(_CANDIDATES * target)
        merger.merge_until(len(spelling) + target)
        can_merge = len(merger.pieces) == len(spelling) + target
        encoder = Encoder(Vocabulary(tuple(merger.pieces)), rule)
        saved = _find_saved(encoder, len(old), spelling, words, counts_W)
    return sorted(saved, key=lambda piece: (-saved[piece], piece))[:num_pieces]


def _find_saved(
    encoder: Encoder, num_old: int, spelling: Vocabulary, words: Sequence[str], counts_W: Array
) -> dict[str, int]:
    """Returns how many tokens each new piece saves, summed over all its uses in the words.

    One use saves one token less than the piece would take in `spelling`, but at least one. New
    pieces that no word uses are left out.

    Args:
        encoder: An encoder whose vocabulary has the old pieces first and then the new ones.
        num_old: The number of old pieces.
        spelling: The old vocabulary and the missing characters, with which savings are compared.
        words: W distinct words.
        counts_W: How often each word occurs.
    """
    ids, lengths_W = encoder.encode_sentences(words)
    pieces = encoder.vocab
    # Float sums are exact below 2^53, far beyond the words of any sample.
    uses = np.bincount(ids, np.repeat(counts_W, lengths_W), len(pieces)).astype(np.int64).tolist()
    new = zip(pieces.tokens[num_old:], uses[num_old:], strict=True)
    return {
        piece: num_uses * max(1, len(split_piece(piece, spelling)) - 1)
        for piece, num_uses in new
        if num_uses
    }


def _missing_characters(old: Vocabulary, words: Sequence[str], rule: WordRule) -> list[str]:
    """Returns pieces of one character that words need and the old vocabulary lacks, sorted."""
    ids, lengths_W = Encoder(old, rule).encode_sentences(words)
    is_unknown_W = np.zeros(len(words), bool)
    is_unknown_W[np.repeat(np.arange(len(words)), lengths_W)[ids == old.unk_id]] = True
    unknown = [words[index] for index in np.flatnonzero(is_unknown_W).tolist()]
    needed = {word[:1] for word in unknown}
    for word in unknown:
        needed |= {CONTINUATION + character for character in word[1:]}
    return sorted(needed - old.ids.keys())


def _start_merging(
    spelling: Vocabulary, words: Sequence[str], counts_W: Array, rule: WordRule
) -> PairMerger:
    """Returns a `PairMerger` of words that are cut into the pieces of a vocabulary.

    Args:
        spelling: The vocabulary. It must have all characters of the words.
        words: W distinct words.
        counts_W: How often each word occurs.
        rule: The rule by which a text becomes words.
    """
    ids, lengths_W = Encoder(spelling, rule).encode_sentences(words)
    # Boundaries stand before, between and after the words. A piece is moved by the boundaries
    # before it: one more than there are words before its word.
    places = np.arange(len(ids)) + np.repeat(np.arange(1, len(words) + 1), lengths_W)
    symbols_P = np.full(len(ids) + len(words) + 1, BOUNDARY, np.int32)
    weights_P = np.zeros(len(symbols_P), np.int64)
    symbols_P[places] = ids
    weights_P[places] = np.repeat(counts_W, lengths_W)
    return PairMerger(symbols_P, weights_P, spelling.tokens)
