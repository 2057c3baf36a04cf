"""Defines WordPiece vocabularies. A token's id is its line in vocab.txt, counted from 0."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"
"""Prefix of a piece that continues a word."""

IdArray = NDArray[np.unsignedinteger]
"""Ids, of the dtype that a vocabulary names."""

_NUM_UINT16 = 1 << 16


@dataclass(frozen=True)
class Vocabulary:
    """A WordPiece vocabulary, whose length is its number of tokens.

    Attributes:
        tokens: The tokens in the order of their ids. The five special tokens must be among them;
            `parse_vocab` checks this, but the class does not.
    """

    tokens: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Ids by their tokens."""
        return {token: index for index, token in enumerate(self.tokens)}

    @property
    def pad_id(self) -> int:
        """Id of [PAD], which fills batches of fixed length."""
        return self.ids[PAD]

    @property
    def unk_id(self) -> int:
        """Id of [UNK], which stands for words that cannot be cut into pieces."""
        return self.ids[UNK]

    @property
    def cls_id(self) -> int:
        """Id of [CLS], with which every instance begins."""
        return self.ids[CLS]

    @property
    def sep_id(self) -> int:
        """Id of [SEP], which ends both segments of an instance."""
        return self.ids[SEP]

    @property
    def mask_id(self) -> int:
        """Id of [MASK], which most masked positions show."""
        return self.ids[MASK]

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """Whether each token continues a word: [vocab_size] bool."""
        return np.array([token.startswith(CONTINUATION) for token in self.tokens])

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Dtype of ids: uint16, or uint32 for vocabularies over 65,536."""
        return np.dtype(np.uint16 if len(self) <= _NUM_UINT16 else np.uint32)

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the bytes of vocab.txt."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def to_text(self) -> str:
        r"""Returns the content of vocab.txt: each token followed by "\n"."""
        return "".join(f"{token}\n" for token in self.tokens)


def parse_vocab(data: bytes, where: str) -> Vocabulary:
    r"""Parses vocab.txt. Lines may end with "\n" or "\r\n".

    Args:
        data: The content of the file.
        where: The name of the file, for messages.

    Raises:
        ValueError: The file is empty or not UTF-8, a line is empty or repeated, or a special token
            is missing.
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
    missing = [token for token in SPECIAL_TOKENS if token not in first_line]
    if missing:
        found = f"no line is {', '.join(missing)} ({len(tokens)} lines)"
        raise ValueError(f"{where}: {found}; BERT needs all five specials")
    return Vocabulary(tokens)
