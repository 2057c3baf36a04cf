"""Implements the nine tasks of GLUE: how their files are read, measured, and submitted.

The first metric of a task is the one that the BERT paper reports (table 1). It chooses the best
run.
"""

from dataclasses import dataclass
from functools import partial

from pipeline.documents.files import StorageOptions
from trainer.finetune.pairs import Examples, PairTask, Predictions, tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.table import read_pairs
from trainer.finetune.task import ReadSet, Split
from trainer.finetune.text import file_stem

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class Layout:
    """The layout of one task's files, its classes and its metrics.

    Attributes:
        name: The file name, without extension, that GLUE's server expects of predictions.
        text: The column of the text, or of the first text of a pair.
        text_b: The column of the second text; None if the task is about single texts.
        label: The column of the label.
        labels: The classes in order; empty if the label is a number.
        metrics: The metrics, with the one that chooses the best run first.
        id: The column of test files that holds the number of the row.
        header: The names of the columns, for a task whose labelled files do not begin with a line
            of names. None if they do; test files always do.
        skips_short_rows: Whether rows of labelled files with too few columns are left out. If not,
            such a row is an error.
    """

    name: str
    text: str
    text_b: str | None
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    id: str = "index"
    header: tuple[str, ...] | None = None
    skips_short_rows: bool = False


COLA = ("source", "label", "mark", "sentence")
NLI = ("contradiction", "entailment", "neutral")
BOTH = ("f1", "accuracy")
LAYOUTS = {
    "cola": Layout("CoLA", "sentence", None, "label", BINARY, ("matthews",), header=COLA),
    "sst2": Layout("SST-2", "sentence", None, "label", BINARY, ("accuracy",)),
    "mrpc": Layout("MRPC", "#1 String", "#2 String", "Quality", BINARY, BOTH),
    "stsb": Layout("STS-B", "sentence1", "sentence2", "score", (), ("spearman", "pearson")),
    "qqp": Layout(
        "QQP", "question1", "question2", "is_duplicate", BINARY, BOTH, "id", skips_short_rows=True
    ),
    "mnli": Layout("MNLI", "sentence1", "sentence2", "gold_label", NLI, ("accuracy",)),
    "qnli": Layout("QNLI", "question", "sentence", "label", ENTAILMENT, ("accuracy",)),
    "rte": Layout("RTE", "sentence1", "sentence2", "label", ENTAILMENT, ("accuracy",)),
    "wnli": Layout("WNLI", "sentence1", "sentence2", "label", BINARY, ("accuracy",)),
}


def open_glue(settings: FinetuneSettings) -> PairTask:
    """Creates the task of GLUE that `settings.task` names, which must be a key of `LAYOUTS`."""
    layout = LAYOUTS[settings.task]
    return PairTask(
        kind="classification" if layout.labels else "regression",
        metrics=layout.metrics,
        read=partial(read_glue, layout, options=settings.filesystem_options()),
        write=partial(_submission, layout),
        labels=layout.labels,
    )


def read_glue(layout: Layout, path: str, split: Split, options: StorageOptions = None) -> ReadSet:
    """Reads the examples of one file of GLUE.

    Only test files have a column of ids. If the column is missing, and in labelled files, the id of
    a row is its number, counted from 0.

    Raises:
        ValueError: The file is malformed. The message names file and line.
    """
    is_test = split == "test"
    columns = ColumnSettings(
        text=layout.text,
        text_b=layout.text_b,
        label=layout.label,
        id=layout.id if is_test else None,
    )
    if is_test:
        return read_pairs(columns, (), path, split, needs_id=False, options=options)
    return read_pairs(
        columns, (), path, split, layout.header, layout.skips_short_rows, options=options
    )


def _submission(
    layout: Layout, path: str, examples: Examples, predictions: Predictions
) -> tuple[str, str]:
    """Makes the table of predictions that GLUE's server takes.

    Args:
        layout: The layout of the task, which names the table.
        path: The file whose examples were predicted. Its name decides which of GLUE's tables a
            model of MNLI makes.
        examples: The examples of the file.
        predictions: One prediction for each example.

    Returns:
        The name of the table's file, such as "SST-2.tsv", and its content. The columns are index
        and prediction. Numbers are limited to 0 to 5, the scale of STS-B.
    """
    rows = [
        (example.id, _limited(value) if isinstance(value, float) else value)
        for example, value in zip(examples, predictions, strict=True)
    ]
    stem = file_stem(path).lower()
    name = layout.name
    if "diagnostic" in stem or stem == "ax":  # the model of MNLI predicts GLUE's diagnostic set
        name = "AX"
    elif name == "MNLI":
        name = "MNLI-mm" if "mismatched" in stem else "MNLI-m"
    return f"{name}.tsv", tab_separated(("index", "prediction"), rows)


def _limited(score: float) -> str:
    """Returns a score of STS-B, limited to 0 to 5, with three decimals."""
    return f"{min(5.0, max(0.0, score)):.3f}"
