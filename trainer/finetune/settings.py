"""Settings of the commands `python -m trainer finetune` and `predict`, and the list of tasks."""

from dataclasses import dataclass, field

from pipeline.command_line.names import suggest
from pipeline.command_line.program import check_least
from pipeline.storage.quoting import quote
from trainer.inference.settings import BatchesToAskSettings
from trainer.process.precision import Precision

SEARCHED = ("search_global_batch", "search_peak_lr", "search_epochs", "search_seeds")
"""Settings with several values; every combination of their values is trained once."""


@dataclass(frozen=True)
class ColumnSettings:
    """Settings of classification, regression and multiple-choice: the columns of a table.

    Attributes:
        text: The column of the text, or of the context of a multiple choice.
        text_b: The column of a pair's second text, or of a text that is put in front of every
            choice; null means that there is none.
        label: The column of the label: a class, a number, or which choice is right, counted from 0.
        choices: The columns of the choices.
        id: The column whose value identifies a row in the predictions; null means its number.
    """

    text: str = "text"
    text_b: str | None = None
    label: str = "label"
    choices: list[str] = field(default_factory=lambda: ["ending0", "ending1", "ending2", "ending3"])
    id: str | None = None


@dataclass(frozen=True)
class SquadSettings:
    """Settings of the tasks squad (1.1) and squad2 (2.0).

    A context that is too long for one sequence is read in overlapping windows. Lengths are in
    WordPiece tokens, which are called pieces.

    Attributes:
        stride: Number of pieces from the beginning of a window to the beginning of the next one.
        max_query_pieces: The most pieces of a question that are read. Longer questions are cut.
        null_threshold: A question of squad2 is left unanswered if the score of giving no answer
            exceeds the score of the best answer by more than this. Null tunes it on the first
            validation file.
    """

    stride: int = 128
    max_query_pieces: int = 64
    null_threshold: float | None = None

    def __post_init__(self) -> None:
        check_least(self, stride=1, max_query_pieces=1)


@dataclass(frozen=True)
class TokenSettings:
    """Settings of the tasks ner and ner-features, which read CoNLL files.

    Attributes:
        token_column: The column of the words, counted from 0; from the end if negative.
        tag_column: The column of the tags, counted in the same way. It is not read in test files.
        feature_layers: Layers whose states are concatenated to the vector of a word in
            ner-features: numbers separated by commas, where -1 is the last layer.
    """

    token_column: int = 0
    tag_column: int = -1
    feature_layers: str = "-1,-2,-3,-4"


@dataclass(frozen=True, kw_only=True)
class TaskSettings(BatchesToAskSettings):
    """Settings that `finetune` and `predict` share.

    Attributes:
        columns: Names of the columns of a table.
        squad: Settings of the tasks squad and squad2.
        tokens: Settings of the tasks ner and ner-features.
        precision: Number format of weights and activations. null lets the device decide how to
            fine-tune: in bf16 on a GPU that has it, otherwise in fp32. `predict` then takes what
            the model was fine-tuned in. Training updates 32-bit weights either way.
    """

    columns: ColumnSettings = field(default_factory=ColumnSettings)
    squad: SquadSettings = field(default_factory=SquadSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    precision: Precision | None = None


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(TaskSettings):
    """Fine-tunes a pretrained model on a task over settings and seeds, and keeps the best result.

    Files:
        task: The task: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, swag, squad (1.1),
            squad2, ner, ner-features; or classification, regression, multiple-choice of any table.
        train: Files to train on, all together.
        validation: Files to measure on, each by itself. The first one chooses the best run.
        output: Folder for results and the best model. The same command again continues there.
        test: Files without labels, for which the best model's predictions are written.

    Search:
        search_global_batch: Items of one optimizer step, over all ranks. Every value is tried.
        search_peak_lr: The learning rate after the warm-up. Every value is tried.
        search_epochs: How often the training items are seen. Every value is tried.
        search_seeds: Random seeds of new weights, order and dropout. Every value is tried.

    Training:
        seq_len: Most tokens of a sequence, with [CLS] and [SEP]. Longer texts are cut and counted.
        warmup_fraction: Share of the steps in which the learning rate grows, before it falls to 0.
        dropout: Dropout of hidden states, attention and the head; null means the model's own.
        replace_head: Whether a model whose head has other labels or another kind gets a new head.
        bias_correction: Whether AdamW corrects its means for their start at 0; BERT's own does not.
    """

    task: str
    train: list[str]
    validation: list[str]
    output: str
    test: list[str] = field(default_factory=list)
    seq_len: int = 128
    search_global_batch: list[int] = field(default_factory=lambda: [32])
    search_peak_lr: list[float] = field(default_factory=lambda: [5e-5])
    search_epochs: list[int] = field(default_factory=lambda: [3])
    search_seeds: list[int] = field(default_factory=lambda: [0])
    warmup_fraction: float = 0.1
    dropout: float | None = None
    bias_correction: bool = True
    replace_head: bool = False


@dataclass(frozen=True, kw_only=True)
class PredictSettings(TaskSettings):
    """Writes the predictions of a fine-tuned model for files, in the format of the task.

    Files:
        input: Files without labels, in the layout of the task's test files.
        output: Folder for the predictions, which are written to OUTPUT/predictions/FILE/.

    Model:
        task: The task. Null means the one that the model was fine-tuned on by `finetune`.
        seq_len: Most tokens of a sequence, with [CLS] and [SEP]. Null means as in fine-tuning.
    """

    input: list[str]
    output: str
    task: str | None = None
    seq_len: int | None = None

    def __post_init__(self) -> None:
        check_least(self, seq_len=5)


GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
TASKS = {
    **dict.fromkeys(GLUE, "trainer.finetune.glue:open_glue"),
    "classification": "trainer.finetune.table:open_table",
    "regression": "trainer.finetune.table:open_table",
    "multiple-choice": "trainer.finetune.table:open_table",
    "swag": "trainer.finetune.table:open_table",
    "squad": "trainer.finetune.squad.task:open_squad",
    "squad2": "trainer.finetune.squad.task:open_squad",
    "ner": "trainer.finetune.tokens.task:open_ner",
    "ner-features": "trainer.finetune.tokens.features:open_ner_features",
}
"""The tasks: the "module:function" by name. The function makes the task from the settings."""


def check_task(task: str) -> None:
    """Refuses the name of an unknown task, and proposes a similar known one.

    Raises:
        ValueError: There is no task of this name.
    """
    if task not in TASKS:
        near = [f"did you mean {name}?" for name in suggest(task, TASKS)[:1]]
        says = " ".join([*near, f"the tasks are {', '.join(TASKS)}"])
        raise ValueError(f"task {quote(task)} is unknown; {says}")


def check_settings(settings: FinetuneSettings) -> None:
    """Refuses settings that make no sense, before any file is read.

    Raises:
        ValueError: A list is empty, or a number is outside its range.
    """
    for name in ("train", "validation", *SEARCHED):
        if not getattr(settings, name):
            raise ValueError(f"{name} is empty; give at least one")
    for name in SEARCHED[:3]:
        if min(getattr(settings, name)) <= 0:
            raise ValueError(f"{name} is {getattr(settings, name)}; every one must be above 0")
    if not 0.0 <= settings.warmup_fraction < 1.0:
        found = f"warmup_fraction is {settings.warmup_fraction}"
        raise ValueError(f"{found}; it is a share of the steps, in [0, 1)")
    check_least(settings, seq_len=5)
