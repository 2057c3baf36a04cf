"""Rows of metrics for Weights & Biases, which is imported only when a run asks for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.watch.curves import curves


class WeightsAndBiases:
    """One W&B run for one run folder, however often it is continued."""

    def __init__(self, project: str, folder: Path, facts: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Starts or resumes the W&B run.

        Args:
            project: Name of the W&B project.
            folder: The run's folder, whose name the W&B run takes.
            facts: run.json, whose id the W&B run takes.
            config: Settings, shown by W&B beside the curves.

        Raises:
            ValueError: wandb is not installed, or does not start.
        """
        try:
            import wandb
        except ImportError as error:
            raise ValueError(
                f"--wandb needs the package wandb, which cannot be imported ({error}): pip install wandb, or leave "
                "--wandb out"
            ) from error
        try:
            self._run = wandb.init(
                project=project,
                id=facts["id"],
                name=folder.resolve().name,
                config=dict(config),
                dir=str(folder),
                resume="allow",
            )
        except wandb.Error as error:
            raise ValueError(f"--wandb {project}: {error}; `wandb login`, or WANDB_MODE=offline, may help") from error
        self._logged_before = int(self._run.step)

    def add(self, row: Mapping[str, Any]) -> None:
        """The numbers of a row. W&B takes no earlier step: repeated ones, which are equal, stay as they were."""
        if row["step"] >= self._logged_before:
            self._run.log(curves(row), step=row["step"])

    def restart_after(self, step: int) -> None:
        """Steps after this one come again, and stay as W&B has them."""
        self._logged_before = max(self._logged_before, int(self._run.step), step + 1)

    def flush(self) -> None:
        """Nothing: wandb sends by itself."""

    def close(self) -> None:
        """Waits until everything is sent."""
        self._run.finish()
