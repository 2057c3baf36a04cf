"""Saves checkpoints in the background: the step waits for a copy in memory, nothing else.

One checkpoint is in flight at a time. Every rank's thread writes and uploads its files; rank 0
commits, and uploads the marker when all are there. The threads talk over a group of their own.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch.distributed

from trainer.checkpoints.read import COMMITTED, STATE
from trainer.checkpoints.settings import CheckpointSettings
from trainer.checkpoints.store import CheckpointStore
from trainer.checkpoints.write import (
    HostCopies,
    Snapshot,
    remove_folders,
    remove_old,
    take_snapshot,
    write_snapshot,
)
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, together
from trainer.runs.run_folder import RunFolder

LONGEST_UPLOAD = timedelta(days=1)
WORTH_SAYING_SECONDS = 1.0


class CheckpointSaver:
    """Takes snapshots and has them written and uploaded; used alike by all ranks."""

    def __init__(
        self,
        run: RunFolder,
        settings: CheckpointSettings,
        ranks: Ranks,
        store: CheckpointStore | None,
        say: Callable[[str], None],
    ) -> None:
        """Makes the threads' group; called by all ranks."""
        group = torch.distributed.new_group(backend="gloo", timeout=LONGEST_UPLOAD)
        # Connects now: a launcher that is lost may take the addresses with it.
        torch.distributed.barrier(group=group)
        self._run, self._settings, self._store, self._say = run, settings, store, say
        self._ranks = dataclasses.replace(ranks, counts_group=group)
        self._copies = HostCopies()
        self._thread: Thread | None = None
        self._failure: BaseException | None = None
        self._in_flight = ""

    @property
    def has_failed(self) -> bool:
        """Whether the last save failed on this rank; the others learn of it in `finish`."""
        return self._failure is not None

    def prepare(self, engine: Any, optimizer: ShardedOptimizer) -> None:
        """Makes the memory that copies take, so that the first save is as quick as the others."""
        take_snapshot({}, engine, optimizer, self._ranks, self._copies)

    def save(self, position: Mapping[str, Any], engine: Any, optimizer: ShardedOptimizer) -> None:
        """Saves in the background, called by all ranks at the same step; raises as `finish`."""
        self.finish()
        snapshot = take_snapshot(position, engine, optimizer, self._ranks, self._copies)
        self._in_flight = snapshot.name
        self._thread = Thread(target=self._write, args=(snapshot,), name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits for what is in flight; an OSError or ValueError of it is raised on all ranks."""
        began = time.monotonic()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if (waited := time.monotonic() - began) > WORTH_SAYING_SECONDS:
            done = "written and uploaded" if self._store else "written"
            self._say(f"waited {waited:.1f} s until {self._in_flight} was {done}")
        if self._failure is not None:
            raise self._failure

    def _write(self, snapshot: Snapshot) -> None:
        keep, keep_every = self._settings.keep, self._settings.keep_every
        try:
            folder = write_snapshot(self._run.checkpoints, snapshot, self._ranks)
            if self._store is not None:
                self._upload(self._store, folder, snapshot)
            with together(self._ranks):
                if self._ranks.rank == 0:
                    remove_old(self._run.checkpoints, keep, keep_every)
                elif folder.suffix:
                    remove_folders(folder)  # pieces of a node that does not see rank 0's folder
        except BaseException as failure:  # noqa: BLE001 - raised by finish()
            self._failure = failure

    def _upload(self, store: CheckpointStore, folder: Path, snapshot: Snapshot) -> None:
        is_first = self._ranks.rank == 0
        with together(self._ranks):
            store.upload(folder, snapshot.name, [*snapshot.files, *[STATE] * is_first])
            if is_first:
                store.upload_run(self._run)
        with together(self._ranks):
            if is_first:
                store.upload(folder, snapshot.name, [COMMITTED])
                store.remove_old(self._settings.keep, self._settings.keep_every)
