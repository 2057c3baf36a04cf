"""Rows of metrics.jsonl and what stands in them. Imports the stdlib and numpy."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Order of the sums that `trainer.engine.train_step` returns.
MLM_LOSS, NSP_LOSS, MLM_HITS, NSP_HITS = range(4)


def loss_columns(sums: list[float], masked: int, instances: int, has_nsp: bool = True) -> dict[str, float]:
    """Mean losses in nats and accuracies from sums over a global batch or a validation set.

    Args:
        sums: As `trainer.engine.train_step` returns them.
        masked: Positions predicted; left to right they are in the columns called mlm as well.
        instances: Instances.
        has_nsp: Whether next sentences are predicted; there are no such columns otherwise.
    """
    mlm_loss, nsp_loss = sums[MLM_LOSS] / masked, sums[NSP_LOSS] / instances
    columns = {"loss": mlm_loss, "mlm_loss": mlm_loss, "mlm_accuracy": sums[MLM_HITS] / masked}
    if not has_nsp:
        return columns
    return {**columns, "loss": mlm_loss + nsp_loss, "nsp_loss": nsp_loss, "nsp_accuracy": sums[NSP_HITS] / instances}


def unigram_entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """Entropy, in nats, of tokens counted in a text: a lower bound of the loss of any guess that ignores the context.

    Too low where tokens are few, by about V / 2N for V kinds among N tokens: 0.02 at 8,000 kinds among 200,000.
    """
    counts = counts_V[counts_V > 0]
    return math.log(counts.sum()) - float((counts * np.log(counts)).sum() / counts.sum())


def majority_share(num_random: int, instances: int) -> float:
    """NSP accuracy of an answer that is always the commoner of the two, random next or actual next.

    The reference's pairs are some 56 % random (docs/parity.md 5), so 0.5 is no base rate.
    """
    return max(num_random, instances - num_random) / instances


class MetricsFile:
    """metrics.jsonl: one row a line, on disk as soon as it is known, so that a killed run keeps what it did."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def cut_after(self, step: int) -> None:
        """Drops rows of later steps, and a torn last line, before the run continues from `step`."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        self.path.write_text("".join(kept), encoding="utf-8")
