"""The nine tasks of GLUE: columns of its tsv files, labels, metrics, and what its server takes.

The first metric is the one that the BERT paper reports (table 1); it chooses the best run.
"""

from dataclasses import dataclass
from functools import partial

from trainer.finetune.pairs import Examples, PairTask, Predictions, tab_separated
from trainer.finetune.settings import ColumnSettings, FinetuneSettings
from trainer.finetune.table import read_pairs
from trainer.finetune.task import ReadSet, Split
from trainer.finetune.text import file_stem

BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class Layout:
    """Columns of one task's files, its classes in order (none for a number), and its metrics.

    `name` is what GLUE's server wants predictions called, `id` the column of the row's number in
    test files, `header` are the columns of labelled files that have none.
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
    """The task of GLUE that the settings name."""
    layout = LAYOUTS[settings.task]
    return PairTask(
        kind="classification" if layout.labels else "regression",
        metrics=layout.metrics,
        read=partial(read_glue, layout),
        write=partial(_submission, layout),
        labels=layout.labels,
    )


def read_glue(layout: Layout, path: str, split: Split) -> ReadSet:
    """Examples of one file of GLUE; the rows of files without ids are numbered."""
    is_test, names = split == "test", (layout.text, layout.text_b, layout.label)
    columns = ColumnSettings(*names, id=layout.id if is_test else None)
    if is_test:
        return read_pairs(columns, (), path, split, needs_id=False)
    return read_pairs(columns, (), path, split, layout.header, layout.skips_short_rows)


def _submission(
    layout: Layout, path: str, examples: Examples, predictions: Predictions
) -> tuple[str, str]:
    """The file of GLUE's server: index and prediction, scores between 0 and 5."""
    rows = [
        (example.id, f"{min(5.0, max(0.0, each)):.3f}" if isinstance(each, float) else each)
        for example, each in zip(examples, predictions, strict=True)
    ]
    stem, name = file_stem(path).lower(), layout.name
    if "diagnostic" in stem or stem == "ax":  # judged by MNLI's model
        name = "AX"
    elif name == "MNLI":
        name = "MNLI-mm" if "mismatched" in stem else "MNLI-m"
    return f"{name}.tsv", tab_separated(("index", "prediction"), rows)
