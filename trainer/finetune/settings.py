"""Settings of `python -m trainer finetune`: every default, meaning and unit."""

from dataclasses import dataclass, field
from typing import Literal

from trainer.model_settings import OptimizerSettings

SWEEPS: dict[str, tuple[list[int], list[float], list[int]]] = {
    # BERT paper, appendix A.3.
    "paper": ([16, 32], [5e-5, 3e-5, 2e-5], [2, 3, 4]),
    # google-research/bert, README: what the small released models were searched over, for 4 epochs.
    "small-models": ([8, 16, 32, 64, 128], [3e-4, 1e-4, 5e-5, 3e-5], [4]),
}
"""Batch sizes, learning rates and epochs."""


@dataclass(frozen=True)
class ColumnSettings:
    """Names of the columns of a table, for the tasks classification, regression and multiple-choice.

    Attributes:
        text: The text, or the context of a multiple choice.
        text_b: The second text of a pair; in a multiple choice the beginning of every ending. null for none.
        label: The class, the number, or the right choice, counted from 0.
        choices: Columns of the choices.
        id: What a row of the predictions begins with; null for the row's number, from 0.
    """

    text: str = "text"
    text_b: str | None = None
    label: str = "label"
    choices: list[str] = field(default_factory=lambda: ["ending0", "ending1", "ending2", "ending3"])
    id: str | None = None


@dataclass(frozen=True)
class SquadSettings:
    """Windows and answers, for the tasks squad (1.1) and squad2 (2.0).

    Attributes:
        stride: Pieces that a window of a long context begins after the one before.
        max_query_pieces: Pieces of a question that are read; what is longer is cut and counted.
        max_answer_pieces: Pieces of an answer at most.
        n_best: Answers of a question that are kept.
        null_threshold: Of squad2: a question is left unanswered where the score of no answer is higher than the best
            answer's by more than this. null tunes it on the first validation file for the best F1.
        on_bad_question: A question or context without text, or an answer that is not where the file says: stop, or
            skip, which leaves it out of training and counts it; it is still answered and scored in validation.
    """

    stride: int = 128
    max_query_pieces: int = 64
    max_answer_pieces: int = 30
    n_best: int = 20
    null_threshold: float | None = None
    on_bad_question: Literal["stop", "skip"] = "stop"


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
        context: Of ner: pieces that neighbouring windows of a sentence longer than seq_len share on each side.
    """

    token_column: int = 0
    tag_column: int = -1
    scheme: Literal["auto", "iob1", "iob2", "bioes"] = "auto"
    feature_layers: str = "-1,-2,-3,-4"
    lstm_hidden_size: int = 768
    lstm_layers: int = 2
    context: int = 32


@dataclass(frozen=True)
class FinetuneSettings:
    """Fine-tunes a pretrained model on a task, for one or many settings and seeds, and keeps the best.

    Attributes:
        task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, swag; squad (1.1), squad2 (2.0); ner, ner-features; or
            classification, regression and multiple-choice of any table.
        model: Folder of a pretrained or fine-tuned model, an export or one of transformers, or of a run of ours, whose
            newest checkpoint is taken.
        train: Files to train on, together.
        validation: Files to measure on, each by itself; the first one chooses the best run.
        output: Folder for results.json, the best model and its predictions. The same command again continues.
        test: Files whose predictions the best model writes, in the benchmark's format; they need no labels.
        columns: Names of the columns of a table.
        squad: Windows and answers of squad and squad2.
        tokens: Columns and windows of ner, layers and sizes of ner-features.
        seq_len: Longest sequence, in tokens with [CLS] and [SEP]; what is longer is cut and counted.
        global_batch: Items of an optimizer step over all ranks; several numbers are all tried.
        peak_lr: Highest learning rate; several numbers are all tried.
        epochs: Times that the training items are seen; several numbers are all tried.
        seeds: Of new weights, order and dropout. One number says how many seeds, from 0 on; several are the seeds.
        sweep: In place of global_batch, peak_lr and epochs: paper for the BERT paper's search (appendix A.3: 18
            settings), small-models for the one of Google's small models (20 settings).
        warmup_fraction: Share of the steps that the learning rate grows in; it falls linearly to 0 afterwards.
        hidden_dropout: Of hidden states and of the head; null for the model's own.
        attention_dropout: Of attention probabilities; null for the model's own.
        optimizer: How weights are updated.
        precision: Of weights and activations, fp32 or bf16; weights are updated in fp32 either way.
        micro_tokens: Most real tokens of one forward pass on one rank. Bounds memory; losses do not depend on it.
        replace_head: Whether a model whose head has other labels, or is of another kind, gets a new one.
        lower_case: Whether the model reads lower-cased text; null for what its folder says.
    """

    task: str
    model: str
    train: list[str]
    validation: list[str]
    output: str
    test: list[str] = field(default_factory=list)
    columns: ColumnSettings = field(default_factory=ColumnSettings)
    squad: SquadSettings = field(default_factory=SquadSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    seq_len: int = 128
    global_batch: list[int] = field(default_factory=lambda: [32])
    peak_lr: list[float] = field(default_factory=lambda: [5e-5])
    epochs: list[int] = field(default_factory=lambda: [3])
    seeds: list[int] = field(default_factory=lambda: [1])
    sweep: Literal["paper", "small-models"] | None = None
    warmup_fraction: float = 0.1
    hidden_dropout: float | None = None
    attention_dropout: float | None = None
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    precision: Literal["fp32", "bf16"] = "fp32"
    micro_tokens: int = 8_192
    replace_head: bool = False
    lower_case: bool | None = None


def check_settings(settings: FinetuneSettings) -> None:
    """Refuses numbers that make no sense before anything is read.

    Raises:
        ValueError: Names the setting.
    """
    for name in ("train", "validation", "global_batch", "peak_lr", "epochs", "seeds"):
        if not getattr(settings, name):
            raise ValueError(f"{name} is empty; give at least one")
    for name in ("global_batch", "peak_lr", "epochs"):
        if min(getattr(settings, name)) <= 0:
            raise ValueError(f"{name} is {getattr(settings, name)}; every one must be above 0")
    if not 0.0 <= settings.warmup_fraction < 1.0:
        raise ValueError(f"warmup_fraction is {settings.warmup_fraction}; it is a share of the steps, in [0, 1)")
    if settings.optimizer.name != "adamw":
        raise ValueError(f"optimizer.name is {settings.optimizer.name}; fine-tuning updates weights with adamw")
    _check_lengths(settings)
    _check_seeds(settings.seeds)


def _check_lengths(settings: FinetuneSettings) -> None:
    length, micro_tokens = settings.seq_len, settings.micro_tokens
    if length < 5:
        raise ValueError(f"seq_len is {length}; [CLS] A [SEP] B [SEP] needs 5")
    if micro_tokens < length:
        raise ValueError(f"micro_tokens {micro_tokens} cannot hold one sequence of seq_len {length} tokens")


def _check_seeds(seeds: list[int]) -> None:
    if len(seeds) == 1 and seeds[0] < 1:
        raise ValueError(f"seeds is {seeds[0]}; one number says how many seeds, at least 1")
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds {seeds} repeats one")
