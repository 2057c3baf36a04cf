"""Computes the numbers of metrics.jsonl, and writes its rows."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.local import replace_file
from trainer.runs.json_files import to_strict


def loss_columns(
    sums: Mapping[str, float], masked: int, instances: int, has_nsp: bool = True
) -> dict[str, float]:
    """Returns mean losses in nats and accuracies, by the names of their columns.

    A left-to-right model has the columns `mlm_loss` and `mlm_accuracy` as well, for the prediction
    of next tokens.

    Args:
        sums: Sums over a global batch or a validation set, by the names of the fields of
            `PretrainingSums` in trainer/model/bert.py.
        masked: The number of predicted tokens.
        instances: The number of instances.
        has_nsp: Whether there is next-sentence prediction. Otherwise its columns are left out.
    """
    mlm_loss = sums["mlm_nll"] / masked
    nsp_loss = sums["nsp_nll"] / instances
    columns = {
        "loss": mlm_loss,
        "mlm_loss": mlm_loss,
        "mlm_accuracy": sums["num_mlm_correct"] / masked,
    }
    if has_nsp:
        columns |= {"loss": mlm_loss + nsp_loss, "nsp_loss": nsp_loss}
        columns["nsp_accuracy"] = sums["num_nsp_correct"] / instances
    return columns


def unigram_entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """Returns the entropy, in nats, of the distribution of tokens in a text.

    The mean loss on this text of a model that ignores the context cannot be lower.

    The result can also serve as an estimate of the entropy of tokens in the language as a whole. As
    such it is too low by about V / 2N, if the text has N tokens of which V are different.

    Args:
        counts_V: [V], how often each token of the vocabulary occurs in the text.
    """
    counts = counts_V[counts_V > 0]
    return math.log(counts.sum()) - float((counts * np.log(counts)).sum() / counts.sum())


def majority_share(num_random: int, instances: int) -> float:
    """Returns the NSP accuracy of a model that always gives the more frequent answer.

    If data are built as BERT's were, 56 % of the second segments are random, so that this accuracy
    is 0.56 (docs/parity.md 5).

    Args:
        num_random: The number of instances whose second segment is random.
        instances: The number of all instances.
    """
    return max(num_random, instances - num_random) / instances


class MetricsFile:
    """The file metrics.jsonl, with one row per line.

    Rows are written as soon as they are known, so that none is lost if the job is killed. A number
    that is not finite is written as null, because JSON has no NaN and no infinity. Files of earlier
    versions have NaN and Infinity, which Python reads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Appends a row to the file."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_strict(row), allow_nan=False) + "\n")

    def find_row(self, step: int, column: str) -> dict[str, Any] | None:
        """Returns the last row of a step that has a column, or None if there is no such row.

        Only lines that contain the column's name are parsed, because a long run has many others. A
        last line that was not written completely is ignored.

        Raises:
            ValueError: A line that was parsed is not a row of metrics.
        """
        if not self.path.exists():
            return None
        found = None
        name = json.dumps(column).encode()
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if name in line and line.endswith(b"\n") and self._step_of(line, number) == step:
                    row = json.loads(line)
                    found = row if column in row else found
        return found

    def cut_after(self, step: int) -> None:
        """Removes the rows of steps after `step`, and a last line that was not written completely.

        The file is made if it does not exist.

        Raises:
            ValueError: A complete line is not a row of metrics. The file is not changed then.
        """
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        whole_lines = [line for line in lines if line.endswith(b"\n")]
        steps = [self._step_of(line, number) for number, line in enumerate(whole_lines, start=1)]
        kept_lines = [
            line for line, row_step in zip(whole_lines, steps, strict=True) if row_step <= step
        ]
        if kept_lines != lines or not lines:
            replace_file(self.path, b"".join(kept_lines))

    def _step_of(self, line: bytes, number: int) -> int:
        """Returns the step of the row in a line, or raises ValueError if the line is no row."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(  # noqa: TRY004
                f"{self.path}, line {number} is no row: {line[:60]!r}; restore the file, or remove"
                " the line, with which nothing is lost but what was measured in that step"
            )
        return int(row["step"])
