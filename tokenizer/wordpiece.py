"""Cuts words into wordpieces like google-research/bert (docs/parity.md 3)."""

from tokenizer.vocab import CONTINUATION, UNK, Vocabulary

MAX_WORD_CHARACTERS = 200
"""A word with more characters is one [UNK]."""


def split_piece(piece: str, vocab: Vocabulary) -> list[str]:
    """Cuts a word into the longest entries of the vocabulary, from left to right.

    The result is one [UNK] if a rest of the word matches no entry. Pieces after the first begin
    with "##".

    Args:
        piece: A word of any length, or a piece of a word that begins with "##".
        vocab: The vocabulary.
    """
    continues = piece.startswith(CONTINUATION) and piece != CONTINUATION
    word = piece.removeprefix(CONTINUATION) if continues else piece
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = CONTINUATION if start or continues else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in vocab.ids), None)
        if end is None:
            return [UNK]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces
