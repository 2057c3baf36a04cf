"""The WordPiece vocabulary: tokens whose index is the id, stored as vocab.txt, one a line."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"
"""Prefix of a piece that continues a word."""

IdArray = NDArray[np.unsignedinteger]
"""Ids, of the dtype that a vocabulary names."""

_NUM_UINT16 = 1 << 16


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order, the five specials among them: whoever makes one sees to that."""

    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Token to id."""
        return {token: index for index, token in enumerate(self.tokens)}

    pad_id = property(lambda self: self.ids[PAD])
    unk_id = property(lambda self: self.ids[UNK])
    cls_id = property(lambda self: self.ids[CLS])
    sep_id = property(lambda self: self.ids[SEP])
    mask_id = property(lambda self: self.ids[MASK])

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """[size] whether each token continues a word."""
        return np.array([token.startswith(CONTINUATION) for token in self.tokens])

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The narrower of uint16 and uint32 that holds every id."""
        return np.dtype(np.uint16 if len(self) <= _NUM_UINT16 else np.uint32)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the bytes of vocab.txt."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def to_text(self) -> str:
        r"""Content of vocab.txt: every token followed by "\n"."""
        return "".join(f"{token}\n" for token in self.tokens)


def parse_vocab(data: bytes, where: str) -> Vocabulary:
    r"""Reads vocab.txt, whose name is `where`; "\r\n" ends a line as "\n" does.

    Raises ValueError: empty, not UTF-8, an empty or repeated line, or no special token.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"line {line} is not UTF-8 ({error.reason})"
        raise ValueError(f"{where}: {found}; save the vocabulary as UTF-8") from error
    tokens = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    if tokens == ("",):
        raise ValueError(f"{where}: the vocabulary is empty; expected one token per line")
    first_line: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if not token:
            advice = "a token's id is its line number, so every line needs one"
            raise ValueError(f"{where}: line {line} is empty; {advice}")
        if token in first_line:
            lines = f"lines {first_line[token]} and {line}"
            raise ValueError(f"{where}: token {token[:60]!r} is on {lines}; keep one of them")
        first_line[token] = line
    if missing := [token for token in SPECIAL_TOKENS if token not in first_line]:
        found = f"no line is {', '.join(missing)} ({len(tokens)} lines)"
        raise ValueError(f"{where}: {found}; BERT needs all five specials")
    return Vocabulary(tokens)
