"""Extends a released model's vocabulary by the pieces that save most tokens of a domain's text.

1. Words are cut by the old vocabulary, characters that it lacks each a piece, and byte-pair merges
   go on from there to half as many pieces again as there is room for.
2. The words are cut by old and new pieces together. A new piece saves, at each of its uses, the
   pieces that it stands for less one; a character that was lacking saves one, its word was [UNK].
3. Those that save most take the places of [unusedN], and then follow the last line.
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
"""Pieces tried for each that is kept: with 2 or 4, text not learned from takes more tokens."""

Array = NDArray[Any]


def extend_vocabulary(
    old: Vocabulary,
    words: Sequence[str],
    counts: Sequence[int] | Array,
    vocab_size: int,
    num_unused: int = 0,
    rule: WordRule = UNCASED,
) -> Vocabulary:
    """The old vocabulary with new pieces in the place of [unusedN] and after its last line.

    Words and counts are those of `learn_vocabulary`. The last `num_unused` of [unusedN] stay, as
    every other old piece does, and a longer old vocabulary than `vocab_size`.
    """
    places = [index for index, token in enumerate(old.tokens) if is_unused(token)]
    places = places[: max(0, len(places) - num_unused)]
    room = len(places) + max(0, vocab_size - len(old))
    is_kept = [can_be_learned(word) for word in words]
    kept = [word for word, keep in zip(words, is_kept, strict=True) if keep]
    counts_W = np.asarray(counts, np.int64)[np.array(is_kept, bool)]
    new = _choose_pieces(old, kept, counts_W, room, rule)
    tokens = list(old.tokens)
    for place, piece in zip(places, new, strict=False):
        tokens[place] = piece
    return Vocabulary((*tokens, *new[len(places) :]))


def is_unused(token: str) -> bool:
    """Whether a token is set aside for words of its user."""
    return token.startswith("[unused") and token.endswith("]")


def tokens_a_word(
    vocabulary: Vocabulary, words: Sequence[str], counts: Sequence[int], rule: WordRule
) -> float:
    """Mean tokens of a word of the text; an [UNK] is one."""
    _, lengths = Encoder(vocabulary, rule).encode_sentences(words)
    return float(np.average(lengths, weights=np.asarray(counts)))


def _choose_pieces(
    old: Vocabulary, words: Sequence[str], counts_W: Array, num_pieces: int, rule: WordRule
) -> list[str]:
    """At most so many new pieces, the one that saves most first; of equal ones by code points."""
    if not words or not num_pieces:
        return []
    spelling = Vocabulary((*old.tokens, *_missing_characters(old, words, rule)))
    merger = _start_merging(spelling, words, counts_W, rule)
    saved: dict[str, int] = {}
    target, can_merge = num_pieces, True
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
    """What each new piece saves at all its uses; one that only leads to longer ones is left out."""
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
    """Pieces of one character that words need and the old vocabulary lacks, by code points."""
    ids, lengths_W = Encoder(old, rule).encode_sentences(words)
    is_unknown_W = np.zeros(len(words), bool)
    is_unknown_W[np.repeat(np.arange(len(words)), lengths_W)[ids == old.unk_id]] = True
    unknown = [words[index] for index in np.flatnonzero(is_unknown_W).tolist()]
    needed = {word[:1] for word in unknown}
    needed |= {CONTINUATION + character for word in unknown for character in word[1:]}
    return sorted(needed - old.ids.keys())


def _start_merging(
    spelling: Vocabulary, words: Sequence[str], counts_W: Array, rule: WordRule
) -> PairMerger:
    """The words as pieces of a vocabulary, a boundary before, between and after them."""
    ids, lengths_W = Encoder(spelling, rule).encode_sentences(words)
    # The place of each piece is moved by the boundaries before it, one more than there are words
    # before its own.
    places = np.arange(len(ids)) + np.repeat(np.arange(1, len(words) + 1), lengths_W)
    symbols_P = np.full(len(ids) + len(words) + 1, BOUNDARY, np.int32)
    weights_P = np.zeros(len(symbols_P), np.int64)
    symbols_P[places], weights_P[places] = ids, np.repeat(counts_W, lengths_W)
    return PairMerger(symbols_P, weights_P, spelling.tokens)
