"""Where rows of metrics go: metrics.jsonl first, then whatever else shows their curves."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.runs.metrics import MetricsFile
from trainer.runs.run_folder import RunFolder
from trainer.settings import PretrainSettings

FLUSH_SECONDS = 30
# Columns that say where a row stands rather than how it went.
PLACES = ("step", "split", "phase", "position", "instances", "masked", "tokens", "pairs")
# Columns measured by a clock or the machine: equal runs differ in them alone.
MEASURED = (
    "tokens_per_second", "data_wait_share", "model_tflops_per_rank", "mfu", "peak_memory_bytes",
    "eta_seconds", "seconds", "phase_seconds",
)  # fmt: skip


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a row as SPLIT/COLUMN or SPLIT/COLUMN/KEY; measured ones as speed/COLUMN."""
    groups = {column: "speed" if column in MEASURED else row["split"] for column in row}
    named = ((f"{groups[column]}/{column}", row[column]) for column in row if column not in PLACES)
    return dict(leaf for name, value in named for leaf in _leaves(name, value))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}/{key}", inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


class TensorBoard:
    """RUN/tensorboard: the curves of every row at its step; what came after `step` is hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open: Any = partial(SummaryWriter, str(folder), flush_secs=FLUSH_SECONDS)
        self._writer = self._open(purge_step=step + 1)

    def restart_after(self, step: int) -> None:
        """Hides later steps, in a new file."""
        self._writer.close()
        self._writer = self._open(purge_step=step + 1)

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


class WeightsAndBiases:
    """One W&B run for one run folder, however often it is continued; only it imports wandb."""

    def __init__(
        self, project: str, folder: Path, facts: Mapping[str, Any], config: Mapping[str, Any]
    ) -> None:
        """Starts or resumes the W&B run of a folder's name and run.json's id."""
        try:
            import wandb
        except ImportError as error:
            lacks = "--wandb needs the package wandb, which cannot be imported"
            raise ValueError(f"{lacks} ({error}): pip install wandb") from error
        known = {"id": facts["id"], "name": folder.resolve().name, "config": dict(config)}
        try:
            self._run = wandb.init(project=project, dir=str(folder), resume="allow", **known)
        except wandb.Error as error:
            cure = "`wandb login`, or WANDB_MODE=offline, may help"
            raise ValueError(f"--wandb {project}: {error}; {cure}") from error
        self._logged_before = int(self._run.step)

    def add(self, row: Mapping[str, Any]) -> None:
        """The numbers of a row; W&B takes no earlier step, and repeated ones are equal."""
        if row["step"] >= self._logged_before:
            self._run.log(curves(row), step=row["step"])

    def restart_after(self, step: int) -> None:
        """Steps after this one come again, and stay as W&B has them."""
        self._logged_before = max(self._logged_before, int(self._run.step), step + 1)

    def flush(self) -> None:
        """Does nothing, as wandb sends by itself."""

    def close(self) -> None:
        """Waits until everything is sent."""
        self._run.finish()


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
