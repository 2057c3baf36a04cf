"""Where rows of metrics go: metrics.jsonl first, then whatever else shows curves. Imports stdlib and yaml."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import yaml

from trainer.metrics import MetricsFile
from trainer.run_folder import RunFolder
from trainer.settings import PretrainSettings
from trainer.watch.tensorboard import TensorBoard
from trainer.watch.wandb import WeightsAndBiases


class Curves(Protocol):
    """Something that shows rows as curves."""

    def add(self, row: Mapping[str, Any]) -> None:
        """One row."""

    def restart_after(self, step: int) -> None:
        """Later rows come again."""

    def flush(self) -> None:
        """Makes what was added outlive this process."""

    def close(self) -> None:
        """No more rows."""


class Recorder:
    """Takes every row of the run; only rank 0's has somewhere to put them."""

    def __init__(self, metrics: MetricsFile | None = None, shown: Sequence[Curves] = ()) -> None:
        self._metrics, self._shown = metrics, shown

    def add(self, row: Mapping[str, Any]) -> None:
        """One row, on disk in metrics.jsonl when this returns."""
        if self._metrics is not None:
            self._metrics.append(row)
        for each in self._shown:
            each.add(row)

    def restart_after(self, step: int) -> None:
        """Drops later rows of a run that went back, which come again: none is doubled."""
        if self._metrics is not None:
            self._metrics.cut_after(step)
        for each in self._shown:
            each.restart_after(step)

    def flush(self) -> None:
        """To be called before a checkpoint counts: a continued run makes the steps before it never again."""
        for each in self._shown:
            each.flush()

    def close(self) -> None:
        """No more rows."""
        for each in self._shown:
            each.close()


def open_recorder(folder: RunFolder, settings: PretrainSettings, step: int) -> Recorder:
    """Rank 0's recorder, going on after `step`: later rows of an earlier launch are dropped, so that none is doubled.

    Raises:
        ValueError: --wandb cannot be had.
    """
    metrics = MetricsFile(folder.metrics)
    metrics.cut_after(step)
    shown: list[Curves] = []
    if settings.tensorboard:
        shown.append(TensorBoard(folder.path / "tensorboard", step))
    if settings.wandb:
        config = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
        shown.append(WeightsAndBiases(settings.wandb, folder.path, folder.read_facts(), config))
    return Recorder(metrics, shown)
