"""Rows of metrics as TensorBoard events. Imports torch, and tensorboard when a writer is made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.watch.curves import curves


class TensorBoard:
    """RUN/tensorboard: the curves of every row at its step.

    A run that continues after step T hides what an earlier launch wrote after T, so no step appears twice.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Goes on after `step`."""
        self._folder = folder
        self._writer = self._open(step)

    def restart_after(self, step: int) -> None:
        """Hides later steps, in a new file."""
        self._writer.close()
        self._writer = self._open(step)

    def _open(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder), purge_step=step + 1, flush_secs=30)

    def add(self, row: Mapping[str, Any]) -> None:
        """The numbers of a row."""
        for name, value in curves(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def flush(self) -> None:
        """Brings everything to the disk: before a checkpoint, whose steps are never made again."""
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()
