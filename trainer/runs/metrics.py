"""Rows of metrics.jsonl and what stands in them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.storage.local import replace_file

# Order of the sums that `trainer.engine.train_step.train_step` returns.
MLM_LOSS, NSP_LOSS, MLM_HITS, NSP_HITS = range(4)

_SHOWN_STRETCHES = 5


def loss_columns(
    sums: list[float], masked: int, instances: int, has_nsp: bool = True
) -> dict[str, float]:
    """Mean losses in nats and accuracies from sums over a global batch or a validation set.

    `masked` counts positions predicted; left to right they are in the columns called mlm as well.
    """
    mlm_loss, nsp_loss = sums[MLM_LOSS] / masked, sums[NSP_LOSS] / instances
    columns = {"loss": mlm_loss, "mlm_loss": mlm_loss, "mlm_accuracy": sums[MLM_HITS] / masked}
    if not has_nsp:
        return columns
    return {
        **columns,
        "loss": mlm_loss + nsp_loss,
        "nsp_loss": nsp_loss,
        "nsp_accuracy": sums[NSP_HITS] / instances,
    }


def unigram_entropy(counts_V: npt.NDArray[np.int64]) -> float:
    """Entropy, in nats, of tokens counted in a text: no guess without the context has a lower loss.

    Too low where tokens are few, by about V / 2N for V kinds among N tokens: 0.02 at 8,000 kinds
    among 200,000.
    """
    counts = counts_V[counts_V > 0]
    return math.log(counts.sum()) - float((counts * np.log(counts)).sum() / counts.sum())


def majority_share(num_random: int, instances: int) -> float:
    """NSP accuracy of an answer that is always the commoner of the two, random next or actual next.

    The reference's pairs are some 56 % random (docs/parity.md 5), so 0.5 is no base rate.
    """
    return max(num_random, instances - num_random) / instances


class MetricsFile:
    """metrics.jsonl: a row a line, on disk as soon as it is known, so that a kill loses nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def cut_after(self, step: int) -> list[int]:
        """Drops rows after `step` and a torn last line; the steps up to it without a row of training.

        Raises:
            ValueError: Another line is no row; the file stays as it is.
        """
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        rows = [
            self._parse(line, number)
            for number, line in enumerate(lines, start=1)
            if line.endswith(b"\n")
        ]
        kept = [line for line, row in zip(lines, rows, strict=False) if row["step"] <= step]
        if kept != lines or not lines:
            replace_file(self.path, b"".join(kept))
        return missing_steps(
            (row["step"] for row in rows if row.get("split", "train") == "train"), step
        )

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise ValueError(  # noqa: TRY004
                f"{self.path}, line {number} is no row: {line[:60]!r}; restore the file, or remove the line, with which"
                " nothing is lost but what was measured in that step"
            )
        return row


def missing_steps(found: Iterable[int], last: int) -> list[int]:
    """Steps from the first to `last` that are not among those found."""
    return sorted({*range(1, last + 1)}.difference(found))


def format_steps(steps: Sequence[int]) -> str:
    """Ascending steps for people, such as "steps 3-7, 12 and 2 more stretches"."""
    starts = [
        step
        for step, before in zip(steps, [None, *steps], strict=False)
        if before is None or step > before + 1
    ]
    stops = [
        step
        for step, after in zip(steps, [*steps[1:], None], strict=True)
        if after is None or step < after - 1
    ]
    pieces = [
        f"{start}-{stop}" if start < stop else str(start)
        for start, stop in zip(starts, stops, strict=True)
    ]
    more = len(pieces) - _SHOWN_STRETCHES
    shown = ", ".join(pieces[:_SHOWN_STRETCHES]) + (
        f" and {more} more stretches" if more > 0 else ""
    )
    return f"step{'s' if len(steps) > 1 else ''} {shown}"
