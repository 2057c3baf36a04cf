"""Makes a temporary copy of a run at one of its checkpoints, in which steps are made again."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.shards.document_list import format_document_list
from pipeline.storage.local import replace_file, scratch_folder
from trainer.checkpoints.store import newest_json
from trainer.engine.deepspeed_file import passed_to_deepspeed
from trainer.forget.plan import OldRun
from trainer.pretrain.run import Run, open_run
from trainer.process.ranks import Ranks, together
from trainer.runs.json_files import to_json
from trainer.runs.run_folder import VOCABULARY_HASHES, RunFolder, to_yaml
from trainer.settings import PretrainSettings, resolve


@dataclass(frozen=True)
class Replay:
    """Which steps of a run are made again, and with which data.

    Attributes:
        run: The run. It is not changed.
        checkpoint: The name of the checkpoint to begin at; None for the beginning of the run.
        data: Where the datasets of the run are now; empty if none was moved.
        storage_options: Options of the filesystems of the datasets, as JSON or @FILE.
        cache_dir: The folder in which data that were read are kept; None for that of the run.
    """

    run: OldRun
    checkpoint: str | None
    data: tuple[str, ...]
    storage_options: str | None
    cache_dir: str | None

    def settings_in(self, folder: RunFolder) -> PretrainSettings:
        """Returns the settings with which a copy of the run in a folder is trained.

        They are those of the run, but for places and uploads. The copy saves as often as the run,
        because a run that goes back to a checkpoint depends on which checkpoints there are.
        """
        settings = self.run.settings
        checkpoint = replace(settings.checkpoint, url=None)
        return replace(
            settings,
            data=list(self.data) or settings.data,
            output=str(folder.path),
            leave_out=str(folder.left_out) if self.run.left_out else None,
            checkpoint=checkpoint,
            cache_dir=self.cache_dir or settings.cache_dir,
            storage_options=self.storage_options,
            wandb=None,
        )


@contextlib.contextmanager
def opened_copy(replay: Replay, ranks: Ranks) -> Iterator[Run]:
    """Yields a copy of a run at the checkpoint of a replay, for a `with` block.

    All ranks enter the block together. The copy is in a temporary folder of rank 0, which is
    deleted after the block. If the ranks are on several machines, TMPDIR must name a folder that
    all of them see. In the block, standard output goes to standard error, because what training
    says is no answer to a question.

    Args:
        replay: The run and the checkpoint.
        ranks: All ranks.

    Raises:
        FileNotFoundError: A file of the run or a dataset is missing.
        ValueError: A file is damaged, or does not fit the others.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        path = Path()
        if ranks.rank == 0:
            path = stack.enter_context(scratch_folder(replay.run.store.url)) / "run"
        path = ranks.from_first(path)
        copy = RunFolder(path)
        settings = replay.settings_in(copy)
        with together(ranks):
            if ranks.rank == 0:
                _write_copy(replay, copy, settings)
        settings = resolve(settings)
        run = open_run(settings, passed_to_deepspeed(settings.deepspeed), ranks)
        assert run is not None, "the checkpoint is from before the last step"
        yield stack.enter_context(contextlib.closing(run))


def _write_copy(replay: Replay, copy: RunFolder, settings: PretrainSettings) -> None:
    """Writes the files of a run's folder with which training can go on from a checkpoint.

    Args:
        replay: The run and the checkpoint.
        copy: The folder of the copy, which is made.
        settings: The settings of the copy.
    """
    run = replay.run
    copy.checkpoints.mkdir(parents=True)
    run.store.fetch_files(list(VOCABULARY_HASHES), copy.path)
    if run.left_out:
        replace_file(copy.left_out, format_document_list(run.left_out))
    if replay.checkpoint is not None:
        run.store.fetch_checkpoint(replay.checkpoint, copy.checkpoints)
        replace_file(copy.newest, newest_json(replay.checkpoint))
    facts: Mapping[str, Any] = {**run.facts, "launches": []}
    replace_file(copy.config, to_yaml(settings).encode())
    replace_file(copy.facts, to_json(facts))
