"""What a run says of itself: rows of metrics.jsonl and the progress bar. Imports the stdlib, numpy and tqdm."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

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


class Progress:
    """The bar on rank 0's terminal: done, losses, tokens per second, time left."""

    def __init__(self, num_steps: int | None, step: int, *, shown: bool) -> None:
        # A log file takes a line every ten seconds, a terminal a redraw twice a second.
        pause = 0.5 if sys.stderr.isatty() else 10.0
        self._bar = tqdm(
            total=num_steps, initial=step, unit="step", dynamic_ncols=True, mininterval=pause, disable=not shown
        )
        self._shown = shown

    def advance(self, row: Mapping[str, Any]) -> None:
        """One more step."""
        names = (("mlm", "mlm_loss"), ("nsp", "nsp_loss"))
        losses = " ".join(f"{name} {row[key]:.3f}" for name, key in names if key in row)
        speed = f"{row['tokens_per_second']:,.0f} tok/s, data wait {row['data_wait_share']:.0%}"
        text = f"loss {row['loss']:.3f} {losses} {speed}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()

    def say(self, text: str) -> None:
        """A line above the bar, from rank 0 only."""
        if self._shown:
            self._bar.write(text)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()
