"""Settings of `python -m trainer features`: every default, meaning and unit."""

from dataclasses import dataclass
from typing import Literal

from pipeline.command_line.program import check_least
from trainer.inference.settings import BatchesToAskSettings

Rows = Literal["token", "word", "cls", "mean", "pooler"]
Combine = Literal["each", "sum", "concat"]


@dataclass(frozen=True, kw_only=True)
class FeaturesSettings(BatchesToAskSettings):
    """Writes hidden states of a model for the texts of a file, a vector for each token, word or text.

    Input:
        input: A file at any fsspec URL, also as .gz, .bz2, .xz and .zst.
        format: How the file is read: text line by line, jsonl as a JSON object a line, conll as a
            word a line with a blank line after each sentence, auto by the file's name
            (docs/evaluating.md).
        text_field: The field of a JSON object that holds the text.
        token_column: The column of a CoNLL file that holds the words, counted from 0.

    Vectors:
        layers: Numbers of layers, separated by commas: 0 the embeddings, -1 the last layer; or all.
        combine: What becomes of several layers: each has its own column, sum adds them up, concat
            lays them side by side.
        rows: What a row stands for: a token of the text; a word, by its first piece; or the text,
            by the last states of [CLS] (cls), the average over its tokens (mean) or the model's
            pooler.
        seq_len: Sequence length in tokens of a window, with [CLS] and [SEP]; null means all that
            the model reads. A longer text is read in windows that overlap by half.

    Running:
        output: The Parquet file to write, at any fsspec URL. It appears whole or not at all.
    """

    input: str
    output: str
    format: Literal["auto", "text", "jsonl", "conll"] = "auto"
    text_field: str = "text"
    token_column: int = 0
    layers: str = "-1"
    combine: Combine = "each"
    rows: Rows = "token"
    seq_len: int | None = None

    def __post_init__(self) -> None:
        check_least(self, seq_len=3, micro_tokens=1)
