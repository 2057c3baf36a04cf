"""Rows of metrics as TensorBoard events."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.watch.curves import curves

FLUSH_SECONDS = 30


class TensorBoard:
    """RUN/tensorboard: the curves of every row at its step.

    A run that continues after step T hides what an earlier launch wrote after T, so no step appears twice. A row is one
    event, 0.13 ms; SummaryWriter, which writes one for each number, takes 0.67.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Goes on after `step`."""
        self._folder = folder
        self._writer = self._open(step)

    def restart_after(self, step: int) -> None:
        """Hides later steps, in a new file."""
        self._writer.close()
        self._writer = self._open(step)

    def add(self, row: Mapping[str, Any]) -> None:
        """The numbers of a row."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in curves(row).items()]
        self._writer.add_summary(Summary(value=values), row["step"])

    def flush(self) -> None:
        """Brings everything to the disk: before a checkpoint, whose steps are never made again."""
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()

    def _open(self, step: int) -> Any:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard import FileWriter

        writer = FileWriter(str(self._folder), flush_secs=FLUSH_SECONDS)
        # Readers drop what stands before the start of a session and has its step or a later one.
        writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), step + 1)
        return writer
