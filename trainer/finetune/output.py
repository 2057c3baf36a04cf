"""The folder of a fine-tuning command: what it is about, and a file for each finished run.

    OUTPUT/finetune.json       what all runs share: settings, model and data by their hashes
    OUTPUT/runs/NAME.json      a finished run: recipe, loss, metrics, seconds
    OUTPUT/best/               the best run's model, as transformers opens it
    OUTPUT/predictions/FILE/   what the best model says of each validation and test file
    OUTPUT/results.json        all of it, with means and standard deviations

Rank 0 writes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.storage.local import replace_file
from trainer.conversion.initial_weights import hash_state
from trainer.finetune.prepare import Prepared
from trainer.finetune.settings import FinetuneSettings
from trainer.runs.continuing import Continuable, names_in
from trainer.runs.json_files import parse_object, to_json
from trainer.runs.run_folder import Inside

FORMAT = 1
FINETUNING = Continuable(
    kind="a fine-tuning",
    marker="finetune.json",
    # The grid may grow; files and models are known by their hashes.
    free=(
        "model", "train", "validation", "test", "output", "global_batch", "peak_lr", "epochs", "seeds", "sweep",
        "micro_tokens",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class OutputFolder:
    """Paths inside.

    Attributes:
        path: The folder.
        facts: What all runs share.
        runs: Folder of a file for each finished run.
        best: Folder of the best run's model.
        predictions: Folder of a folder for each predicted file.
        results: The results of all runs.
    """

    path: Path
    facts = Inside(FINETUNING.marker)
    runs = Inside("runs")
    best = Inside("best")
    predictions = Inside("predictions")
    results = Inside("results.json")

    def read_run(self, name: str) -> dict[str, Any] | None:
        """A finished run, None where it is not finished.

        Raises:
            ValueError: Its file is damaged.
        """
        path = self.runs / f"{name}.json"
        remedy = "delete it, and this run is made again"
        return parse_object(path.read_bytes(), str(path), remedy) if path.is_file() else None

    def write_run(self, name: str, run: Mapping[str, Any]) -> None:
        """Marks a run as finished."""
        replace_file(self.runs / f"{name}.json", to_json(run))

    def write_predictions(self, file_name: str, contents: Mapping[str, str]) -> None:
        """Files of predictions of one file of data."""
        folder = self.predictions / file_name
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            replace_file(folder / name, text.encode())


def open_output(output: OutputFolder, settings: FinetuneSettings, prepared: Prepared) -> None:
    """Makes the folder, or checks that the one there may be continued. Rank 0 only.

    Raises:
        FileExistsError: It holds something else.
        ValueError: It holds runs of other settings, of another model or of other data, and says
            which; or finetune.json is damaged.
    """
    FINETUNING.refuse_foreign(str(output.path), names_in(output.path))
    facts = json.loads(to_json(shared_facts(settings, prepared)))
    if output.facts.is_file():
        remedy = "restore it, or give another --output for new runs"
        old = parse_object(output.facts.read_bytes(), str(output.facts), remedy)
        FINETUNING.check_settings(str(output.path), old, facts)
    output.runs.mkdir(parents=True, exist_ok=True)
    replace_file(output.facts, to_json(facts))


def shared_facts(settings: FinetuneSettings, prepared: Prepared) -> dict[str, Any]:
    """What every run of a folder has in common."""
    return {
        "format": FORMAT,
        **FINETUNING.bound_settings(settings),
        "model_sha256": hash_state(prepared.opened.state),
        "labels": list(prepared.head.labels),
        "train_sha256": [file.facts["sha256"] for file in prepared.train],
        "validation_sha256": {file.name: file.facts["sha256"] for file in prepared.validation},
    }
