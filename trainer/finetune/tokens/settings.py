"""Settings of token classification. Imports the stdlib."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TokenSettings:
    """Columns of CoNLL files, for the task ner.

    Attributes:
        token_column: Column of the words, counted from 0; from the end if negative.
        tag_column: Column of the tags; of test files it is not read.
        scheme: How tags spell entities: iob1, iob2 or bioes, and every tag is checked; auto finds out which.
        context: Pieces that neighbouring windows of a sentence longer than max_seq_len share on each side.
    """

    token_column: int = 0
    tag_column: int = -1
    scheme: Literal["auto", "iob1", "iob2", "bioes"] = "auto"
    context: int = 32
