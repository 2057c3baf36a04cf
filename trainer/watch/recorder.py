"""Writes the rows of metrics to metrics.jsonl, TensorBoard and W&B."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trainer.runs.metrics import MetricsFile
from trainer.runs.run_folder import RunFolder
from trainer.settings import PretrainSettings

FLUSH_SECONDS = 30
# Columns that say which step a row describes and how much it processed; they get no curve.
PLACES = ("step", "split", "phase", "position", "instances", "masked", "tokens", "pairs")
# Columns that depend on the clock or the machine. Two equal runs differ only in these.
MEASURED = (
    "tokens_per_second", "data_wait_share", "model_tflops_per_rank", "mfu", "peak_memory_bytes",
    "eta_seconds", "seconds", "phase_seconds", "save_seconds",
)  # fmt: skip


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row of metrics.jsonl by the names of their curves.

    A curve is named SPLIT/COLUMN, such as "train/mlm_loss". If the value of a column is an object,
    each number in it has a curve SPLIT/COLUMN/KEY. Columns that depend on the machine (MEASURED)
    have "speed" in place of the split.
    """
    groups = {column: "speed" if column in MEASURED else row["split"] for column in row}
    named = ((f"{groups[column]}/{column}", row[column]) for column in row if column not in PLACES)
    return dict(leaf for name, value in named for leaf in _leaves(name, value))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yields the name and the number of every number in a value.

    A number has the name `name`. A number inside nested objects has the keys that lead to it
    appended, as in "name/key/key". Other values yield nothing.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}/{key}", inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


class TensorBoard:
    """Writes the curves to the folder `tensorboard` of a run."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open: Any = partial(SummaryWriter, str(folder), flush_secs=FLUSH_SECONDS)
        self._writer = self._open(purge_step=step + 1)

    def restart_after(self, step: int) -> None:
        """Begins a new file of events, because the run goes back to `step`.

        The file tells TensorBoard to ignore what earlier files hold about later steps.
        """
        self._writer.close()
        self._writer = self._open(purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds the numbers of a row to the curves."""
        for name, value in curves(row).items():
            self._writer.add_scalar(name, value, row["step"])

    def flush(self) -> None:
        """Writes everything to disk, before a checkpoint is saved."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class WeightsAndBiases:
    """Sends the curves to W&B. All launches of a run share one run of W&B.

    The package wandb is imported only here.
    """

    def __init__(
        self, project: str, folder: Path, facts: Mapping[str, Any], config: Mapping[str, Any]
    ) -> None:
        """Starts a run at W&B, or resumes the one that an earlier launch started.

        The run at W&B has the id of run.json, by which later launches find it again, and the name
        of the folder.

        Args:
            project: Name of the project at W&B.
            folder: Folder of the run.
            facts: Content of run.json.
            config: Content of config.yaml.

        Raises:
            ValueError: wandb cannot be imported or reached.
        """
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
        """Sends the numbers of a row, unless W&B already has this step.

        W&B takes no step twice. If a run makes a step again, W&B keeps the numbers of the first
        time. They can differ from those of metrics.jsonl, for example if the run went back to a
        checkpoint and left instances out.
        """
        if row["step"] >= self._logged_before:
            self._run.log(curves(row), step=row["step"])

    def restart_after(self, step: int) -> None:
        """Prepares for the repetition of the steps after `step`.

        W&B keeps the rows that it has of these steps, and `add` does not send them again.
        """
        self._logged_before = max(self._logged_before, int(self._run.step), step + 1)

    def flush(self) -> None:
        """Does nothing, because wandb sends rows by itself."""

    def close(self) -> None:
        """Waits until everything is sent."""
        self._run.finish()


Curves = TensorBoard | WeightsAndBiases


class Recorder:
    """Writes every row of a run to metrics.jsonl, TensorBoard and, if it is set up, W&B.

    A recorder without arguments drops the rows. Ranks other than 0 have such a recorder.
    """

    def __init__(self, metrics: MetricsFile | None = None, shown: Sequence[Curves] = ()) -> None:
        self._metrics = metrics
        self._shown = shown

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row. When this returns, the row is on disk in metrics.jsonl."""
        if self._metrics is not None:
            self._metrics.append(row)
        for shown in self._shown:
            shown.add(row)

    def restart_after(self, step: int) -> None:
        """Drops the rows of later steps, because the run has gone back to `step`.

        The run makes these steps again and adds their rows again.
        """
        if self._metrics is not None:
            self._metrics.cut_after(step)
        for shown in self._shown:
            shown.restart_after(step)

    def flush(self) -> None:
        """Writes rows that are still in memory to disk; called before a checkpoint is saved.

        A run that continues from the checkpoint does not make the earlier steps again, so their
        rows must not be lost.
        """
        for shown in self._shown:
            shown.flush()

    def close(self) -> None:
        """Closes the files, after the last row."""
        for shown in self._shown:
            shown.close()


def open_recorder(folder: RunFolder, settings: PretrainSettings, step: int) -> Recorder:
    """Opens the recorder of rank 0 for a launch that continues after a step.

    Rows of later steps, which an earlier launch has written, are dropped.

    Args:
        folder: The folder of the run.
        settings: The settings of the run; they say whether rows are sent to W&B.
        step: The last step that is done; 0 for a new run.

    Raises:
        ValueError: metrics.jsonl is damaged, or wandb cannot be imported or reached.
    """
    metrics = MetricsFile(folder.metrics)
    metrics.cut_after(step)
    shown: list[Curves] = [TensorBoard(folder.path / "tensorboard", step)]
    if settings.wandb:
        shown.append(
            WeightsAndBiases(settings.wandb, folder.path, folder.read_facts(), folder.read_config())
        )
    return Recorder(metrics, shown)
