"""Settings of token classification. Imports the stdlib."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TokenSettings:
    """Columns of CoNLL files, for the tasks ner and ner-features.

    Attributes:
        token_column: Column of the words, counted from 0; from the end if negative.
        tag_column: Column of the tags; of test files it is not read.
        scheme: How tags spell entities: iob1, iob2 or bioes, and every tag is checked; auto finds out which.
        feature_layers: Of ner-features: layers of the model whose states, side by side, are a word's vector.
        lstm_hidden_size: Of ner-features: values of the BiLSTM in each direction.
        lstm_layers: Of ner-features: its layers.
        context: Of ner: pieces that neighbouring windows of a sentence longer than max_seq_len share on each side.
    """

    token_column: int = 0
    tag_column: int = -1
    scheme: Literal["auto", "iob1", "iob2", "bioes"] = "auto"
    feature_layers: str = "-1,-2,-3,-4"
    lstm_hidden_size: int = 768
    lstm_layers: int = 2
    context: int = 32
