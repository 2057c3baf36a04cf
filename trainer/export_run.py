"""The newest checkpoint of a run as a model folder, from the run's own folder or from the URL it was uploaded to.

Imports torch. Of a checkpoint at a URL only the weights and the progress are downloaded, not the optimizer's states.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.shards.storage import is_local, open_filesystem, parse_storage_options
from trainer.checkpoint import (
    COMMITTED,
    MODEL,
    STATE,
    describe_file,
    newest_checkpoint,
    read_marker,
    read_state,
    read_weights,
)
from trainer.checkpoint_store import CheckpointStore
from trainer.export import VOCAB, export_google, export_hf
from trainer.model.config import BertConfig
from trainer.run_folder import RUN_FACTS, RunFolder
from trainer.tool_settings import ExportSettings

_WRITERS = {"huggingface": export_hf, "google": export_google}


@dataclass(frozen=True)
class _Trained:
    """What an export needs of a run, on this machine's disk.

    Attributes:
        where: The checkpoint, as a person names it.
        run: Holds run.json and vocab.txt.
        checkpoint: Holds the weights and state.json.
    """

    where: str
    run: RunFolder
    checkpoint: Path


def export_run(settings: ExportSettings) -> dict[str, Any]:
    """Writes the model folder.

    Returns:
        "exported", "checkpoint" and "step", for a person to read.

    Raises:
        FileNotFoundError: There is no run, or no committed checkpoint.
        ValueError: The checkpoint is damaged, or the output's place is taken.
    """
    with _open(settings) as trained:
        facts, state = trained.run.read_facts(), read_state(trained.checkpoint)
        _WRITERS[settings.format](
            read_weights(trained.checkpoint),
            BertConfig(**facts["model"]),
            (trained.run.path / VOCAB).read_bytes(),
            settings.output,
            lower_case=facts["datasets"][0]["lower_case"],
            provenance={
                "steps": state["step"],
                "tokens_seen": state["tokens"],
                "instances_seen": state["instances"],
                "datasets": [{key: each[key] for key in ("name", "weight", "root_hash")} for each in facts["datasets"]],
            },
        )
    return {"exported": settings.output, "checkpoint": trained.where, "step": state["step"]}


@contextmanager
def _open(settings: ExportSettings) -> Iterator[_Trained]:
    options = parse_storage_options(settings.storage_options)
    filesystem, path = open_filesystem(settings.run, options)
    if is_local(filesystem):
        run = RunFolder(Path(path))
        run.read_facts()  # first: whether it is a run at all
        checkpoint = newest_checkpoint(run.checkpoints)
        yield _Trained(str(checkpoint), run, checkpoint)
        return
    store = CheckpointStore(settings.run, options)
    if store.read_facts() is None:
        raise FileNotFoundError(f"{settings.run} holds no {RUN_FACTS}; give the --checkpoint.url of a pretrain command")
    names, _ = store.list_checkpoints()
    if not names:
        raise FileNotFoundError(f"no committed checkpoint at {settings.run}; train first, or give another run")
    with tempfile.TemporaryDirectory(prefix="beambert-export-") as folder:
        run = RunFolder(Path(folder))
        store.fetch_files([RUN_FACTS, VOCAB], run.path)
        where = store.locate(f"checkpoints/{names[-1]}")
        checkpoint = store.fetch_checkpoint(names[-1], run.checkpoints, [MODEL, STATE])
        _refuse_damaged(checkpoint, where)
        yield _Trained(where, run, checkpoint)


def _refuse_damaged(checkpoint: Path, where: str) -> None:
    expected = read_marker(checkpoint)
    for name in (MODEL, STATE):
        if (found := describe_file(checkpoint / name)) != expected[name]:
            raise ValueError(
                f"{where}/{name} is damaged: {found}, {COMMITTED} says {expected[name]}; restore it, or delete "
                f"{where}/{COMMITTED} to export the checkpoint before"
            )
