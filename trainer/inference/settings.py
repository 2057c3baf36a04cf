"""Settings of the commands that use a trained model: fill-mask, evaluate, features and export."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pipeline.command_line.program import check_least
from pipeline.storage.quoting import quote

Rows = Literal["token", "word", "cls", "mean", "pooler"]
"""The kinds of rows of features: one for each token, word or text."""
_OF_DATA = ("split", "seq_len", "num_instances")
"""Settings of `evaluate` that only apply to a dataset."""
_OF_PAIRS = ("group_by", "pairs_limit", "pll")
"""Settings of `evaluate` that only apply to minimal pairs."""


_MASK = "[MASK]"  # tokenizer.vocab.MASK; importing it takes numpy


def check_text(text: str) -> None:
    """Raises ValueError for a text without [MASK], or with bytes that were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        cure = "set the terminal and its locale to UTF-8"
        raise ValueError(f"the text is not UTF-8: {quote(text)}; {cure}") from error
    if _MASK not in text:
        advice = f"write {_MASK} where the model is to put a word"
        raise ValueError(f"the text has no {_MASK}: {quote(text)}; {advice}")


def parse_layers(text: str) -> list[int] | None:
    """Returns the numbers of layers in a text such as "-1,-2", or None for "all".

    Raises:
        ValueError: The text is neither.
    """
    if text == "all":
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        says = "expected numbers separated by commas, or all"
        raise ValueError(f"layers is {quote(text)}; {says}") from error


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """How a command opens what is at a URL.

    Attributes:
        storage_options: Options of the filesystem of all URLs that the command reads or writes, as
            JSON or @FILE. The usual environment variables count too.
    """

    storage_options: str | None = None

    def filesystem_options(self) -> Mapping[str, Any] | None:
        """Returns the parsed `storage_options`: arguments for fsspec filesystems, or None.

        Raises:
            ValueError: The setting is not a JSON object.
        """
        from pipeline.storage.folder import parse_storage_options

        return parse_storage_options(self.storage_options)


@dataclass(frozen=True, kw_only=True)
class ModelToAskSettings(StorageSettings):
    """The model that a command uses.

    Attributes:
        model: A run, RUN@STEP for an earlier checkpoint, a model's folder or URL, or its name on
            the Hugging Face Hub.
    """

    model: str


@dataclass(frozen=True, kw_only=True)
class BatchesToAskSettings(ModelToAskSettings):
    """The model that a command uses, and how many tokens it reads at a time.

    Attributes:
        micro_tokens: The most real tokens of one forward pass on one rank. It bounds memory and
            changes no result.
    """

    micro_tokens: int = 8_192


@dataclass(frozen=True, kw_only=True)
class FillMaskSettings(ModelToAskSettings):
    """Prints the words that a trained model finds most probable at [MASK].

    Attributes:
        texts: Texts, each with one or several [MASK].
        top_k: How many candidates are printed for each [MASK].
    """

    texts: list[str]
    top_k: int = 5

    def __post_init__(self) -> None:
        check_least(self, top_k=1)
        for text in self.texts:
            check_text(text)


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(BatchesToAskSettings):
    """Measures a model on a dataset, or on minimal pairs of sentences such as BLiMP's.

    Dataset:
        data: Folder or URL of a built dataset with the model's vocabulary.
        split: The split to measure on; of its passes, which differ in masks, the first one is read.
        seq_len: Length of the instances; null means every length that the split has and the model
            can read.
        num_instances: How many instances are read, from the first one; 0 takes all.

    Minimal pairs:
        pairs: A file of JSON lines with sentence_good and sentence_bad, or a folder or glob of
            such files. Give either data or pairs.
        group_by: Columns of the pairs by which accuracies are grouped, the coarsest first. The
            default is linguistics_term and UID, BLiMP's phenomena and paradigms, if the pairs have
            them.
        pairs_limit: How many pairs of each group are read, from the first one; 0 takes all.
        pll: Which tokens are masked while a token is predicted. With original it is that token
            alone, with word-l2r also the later tokens of its word.

    Output:
        output: File or URL to which the printed numbers are also written as JSON; null writes none.
    """

    data: str | None = None
    split: Literal["train", "validation"] = "validation"
    seq_len: int | None = None
    num_instances: int = 0
    pairs: str | None = None
    group_by: list[str] = field(default_factory=list)
    pairs_limit: int = 0
    pll: Literal["original", "word-l2r"] = "original"
    output: str | None = None

    def __post_init__(self) -> None:
        check_least(self, num_instances=0, micro_tokens=1, pairs_limit=0)
        if (self.data is None) == (self.pairs is None):
            raise ValueError("give either --data, a dataset, or --pairs, a file of minimal pairs")
        unused = _OF_PAIRS if self.pairs is None else _OF_DATA
        defaults = {setting.name: setting.default for setting in fields(self)} | {"group_by": []}
        changed = [name for name in unused if getattr(self, name) != defaults[name]]
        if changed:
            other = "--pairs" if self.pairs is None else "--data"
            raise ValueError(f"--{changed[0]} is about {other}, which is not given; leave it out")


@dataclass(frozen=True, kw_only=True)
class FeaturesSettings(BatchesToAskSettings):
    """Writes hidden states of a model: a vector for each token, word or text of a file.

    Input:
        input: A file at any fsspec URL, also as .gz, .bz2, .xz and .zst.
        format: What a line of the input is: the content itself (text), a JSON object with the
            content in a field (jsonl), or a word (conll). auto decides by the file's name and first
            bytes, and also reads CSV.
        text_field: The field of a JSON object that holds the text.
        token_column: The column of a CoNLL file that holds the words, counted from 0.

    Vectors:
        layers: Numbers of layers, separated by commas: 0 is the embeddings, -1 the last layer; or
            all.
        rows: What a row stands for: a token; a word, with the vector of its first piece; or a text,
            with the vector of [CLS] (cls), the average over its tokens (mean) or the output of the
            model's pooler.
        seq_len: Most tokens of a window, with [CLS] and [SEP]; null means as many as the model can
            read. A longer text is read in windows that overlap by half; cls and pooler read only
            the first window.

    Running:
        output: The Parquet file to write, at any fsspec URL. It appears whole or not at all.
    """

    input: str
    output: str
    format: Literal["auto", "text", "jsonl", "conll"] = "auto"
    text_field: str = "text"
    token_column: int = 0
    layers: str = "-1"
    rows: Rows = "token"
    seq_len: int | None = None

    def __post_init__(self) -> None:
        check_least(self, seq_len=3, micro_tokens=1)
        parse_layers(self.layers)


@dataclass(frozen=True, kw_only=True)
class ExportSettings(StorageSettings):
    """Writes a checkpoint as a folder for Hugging Face transformers or DeepSpeed.

    Attributes:
        run: The run's folder or its --checkpoint.url; RUN@STEP for an earlier checkpoint,
            RUN@mean5 for the mean of the newest 5. The folder of a model can be given too.
        output: Folder or fsspec URL to write. An earlier export there is replaced; a
            folder with anything else in it is refused.
        output_format: The format: huggingface for transformers, or deepspeed-universal, which has
            the optimizer's state too.
    """

    run: str
    output: str
    output_format: Literal["huggingface", "deepspeed-universal"] = "huggingface"
