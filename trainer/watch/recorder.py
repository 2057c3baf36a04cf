"""Where rows of metrics go: metrics.jsonl first, then whatever else shows curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.runs.metrics import MetricsFile
from trainer.runs.run_folder import RunFolder
from trainer.settings import PretrainSettings
from trainer.watch.curves import TensorBoard, WeightsAndBiases

Curves = TensorBoard | WeightsAndBiases


class Recorder:
    """Takes every row of the run; only rank 0's has somewhere to put them."""

    def __init__(self, metrics: MetricsFile | None = None, shown: Sequence[Curves] = ()) -> None:
        self._metrics, self._shown = metrics, shown

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes a row, which is on disk in metrics.jsonl when this returns."""
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
        """Brings rows to where they stay: a continued run makes the steps before it never again."""
        for each in self._shown:
            each.flush()

    def close(self) -> None:
        """Ends what is shown: there are no more rows."""
        for each in self._shown:
            each.close()


def open_recorder(folder: RunFolder, settings: PretrainSettings, step: int) -> Recorder:
    """Rank 0's recorder, going on after `step`; later rows of an earlier launch are dropped.

    Raises:
        ValueError: metrics.jsonl is damaged, or --wandb cannot be had.
    """
    metrics = MetricsFile(folder.metrics)
    metrics.cut_after(step)
    shown: list[Curves] = [TensorBoard(folder.path / "tensorboard", step)]
    if settings.wandb:
        shown.append(
            WeightsAndBiases(settings.wandb, folder.path, folder.read_facts(), folder.read_config())
        )
    return Recorder(metrics, shown)
