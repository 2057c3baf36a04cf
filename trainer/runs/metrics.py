"""Rows of metrics.jsonl and what stands in them."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.local import replace_file

# Order of the sums that `trainer.engine.train_step.train_step` returns.
MLM_LOSS, NSP_LOSS, MLM_HITS, NSP_HITS = range(4)


def loss_columns(
    sums: list[float], masked: int, instances: int, has_nsp: bool = True
) -> dict[str, float]:
    """Mean losses in nats and accuracies from sums over a global batch or a validation set.

    `masked` counts positions predicted; left to right they are in the columns called mlm as well.
    """
    mlm_loss, nsp_loss = sums[MLM_LOSS] / masked, sums[NSP_LOSS] / instances
    columns = {"loss": mlm_loss, "mlm_loss": mlm_loss, "mlm_accuracy": sums[MLM_HITS] / masked}
    if has_nsp:
        columns |= {"loss": mlm_loss + nsp_loss, "nsp_loss": nsp_loss}
        columns["nsp_accuracy"] = sums[NSP_HITS] / instances
    return columns


def unigram_entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """Entropy, in nats, of tokens counted in a text: no guess without the context has a lower loss.

    It is too low by about V / 2N for V kinds among N tokens.
    """
    counts = counts_V[counts_V > 0]
    return math.log(counts.sum()) - float((counts * np.log(counts)).sum() / counts.sum())


def majority_share(num_random: int, instances: int) -> float:
    """NSP accuracy of the commoner answer: 56 % are random in BERT (docs/parity.md 5)."""
    return max(num_random, instances - num_random) / instances


class MetricsFile:
    """metrics.jsonl: a row a line, on disk as soon as it is known, so that a kill loses nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def cut_after(self, step: int) -> None:
        """Drops rows after `step` and a torn last line.

        Raises:
            ValueError: Another line is no row; the file stays as it is.
        """
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        steps = [self._step_of(line, number) for number, line in enumerate(whole, start=1)]
        kept = [line for line, found in zip(whole, steps, strict=True) if found <= step]
        if kept != lines or not lines:
            replace_file(self.path, b"".join(kept))

    def _step_of(self, line: bytes, number: int) -> int:
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
