"""Settings of `python -m trainer features`: every default, meaning and unit."""

from dataclasses import dataclass
from typing import Literal

from pipeline.command_line.program import check_least

Rows = Literal["token", "word", "cls", "mean", "pooler"]
Combine = Literal["each", "sum", "concat"]


@dataclass(frozen=True, kw_only=True)
class FeaturesSettings:
    """Writes hidden states of a model for texts, a vector for each token, word or text.

    Attributes:
        model: A run, RUN@STEP for an earlier checkpoint, or a folder written by export or by transformers; also URLs.
        input: Files, folders or quoted globs, local or at any fsspec URL; also as .gz, .bz2, .xz and .zst.
        output: Folder to write, or an fsspec URL. The same command again continues what was interrupted.
        format: text has a text a line, jsonl a JSON object a line, conll a word a line and a blank line after a
            sentence; auto goes by the name: .jsonl, and .conll, .iob2, .bio or .conllu.
        text_field: Of a JSON object, its text.
        id_field: Of a JSON object, a name that is written beside each row; null for none.
        token_column: Of a CoNLL file, which column holds the words, from 0.
        layers: Numbers separated by commas, 0 the embeddings, -1 the last layer; or all.
        combine: each makes a column a layer, sum adds the layers up, concat lays them side by side.
        rows: What a row stands for: a token of the text; a word, by its first piece; or the text, by the last
            states of [CLS] (cls), the mean over its tokens (mean) or the model's pooler (pooler, of no layer).
        output_format: parquet holds vectors as columns; npy writes them as arrays with the other columns in Parquet.
        dtype: Of the vectors.
        seq_len: Tokens of a window with [CLS] and [SEP]; null for all that the model reads.
        stride: Tokens from one window of a long text to the next; null for half a window.
        micro_tokens: Most tokens of one forward pass.
        texts_per_part: Texts of one output file: what an interrupted command does again at most.
        device: auto takes a GPU where there is one.
    """

    model: str
    input: list[str]
    output: str
    format: Literal["auto", "text", "jsonl", "conll"] = "auto"
    text_field: str = "text"
    id_field: str | None = None
    token_column: int = 0
    layers: str = "-1"
    combine: Combine = "each"
    rows: Rows = "token"
    output_format: Literal["parquet", "npy"] = "parquet"
    dtype: Literal["float32", "float16"] = "float32"
    seq_len: int | None = None
    stride: int | None = None
    micro_tokens: int = 8_192
    texts_per_part: int = 10_000
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        check_least(self, seq_len=3, stride=1, micro_tokens=1, texts_per_part=1)
