"""A word to wordpieces, as google-research/bert cuts it (docs/parity.md 3)."""

from tokenizer.vocab import CONTINUATION, UNK, Vocabulary

MAX_WORD_CHARACTERS = 200
"""A longer word is one [UNK]."""


def split_piece(piece: str, vocab: Vocabulary) -> list[str]:
    """Longest vocabulary entries from left to right, "##" before all but the first, or [UNK].

    Of a word of any length, or of a piece that begins with "##".
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
