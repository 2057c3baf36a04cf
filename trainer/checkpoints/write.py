"""Saving: a step waits for a copy in memory; a thread of each rank writes, hashes and uploads it.

The folder is made as `step-00000600.tmp` and renamed when it is whole. A node that does not see
rank 0's folder keeps its own ranks' pieces in such a folder until they are uploaded.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from pipeline.storage.faults import StorageError
from pipeline.storage.local import make_durable, replace_file
from trainer.checkpoints.read import (
    COMMITTED,
    FORMAT,
    MODEL,
    STATE,
    describe_file,
    remove_folders,
    remove_old,
)
from trainer.checkpoints.store import CheckpointStore, newest_json
from trainer.engine.zero import iterate_weights
from trainer.optim.sharded import Fragment, ShardedOptimizer
from trainer.process.ranks import Ranks, together
from trainer.runs.run_folder import RunFolder
from trainer.settings import CheckpointSettings

LONGEST_UPLOAD = timedelta(days=1)
WORTH_SAYING_SECONDS = 1.0


@dataclass(frozen=True)
class Snapshot:
    """What one rank writes of a checkpoint, in memory that training no longer changes."""

    position: Mapping[str, Any]
    """JSON values that a resume needs beside tensors; "step" names the folder."""
    num_updates: int
    files: Mapping[str, Mapping[str, Tensor]]
    """Tensors by name, of every file this rank writes."""
    pieces: Mapping[str, Mapping[str, list[int]]]
    """{file: {parameter: [start, numel]}} of this rank's fragments."""

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""
        return f"step-{self.position['step']:08d}"


def take_snapshot(
    position: Mapping[str, Any],
    engine: Any,
    optimizer: ShardedOptimizer,
    ranks: Ranks,
    copies: dict[str, Tensor],
) -> Snapshot:
    """Copies what this rank writes into kept memory; all ranks call it, as ZeRO-3 gathers."""

    def copy(name: str, tensor: Tensor) -> Tensor:
        if name not in copies:
            copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return copies[name].copy_(tensor.detach())

    def copy_piece(kind: str, piece: Fragment) -> Tensor:
        whole = weights.get(piece.name)
        if kind == "fp32" and whole is not None and whole.dtype == torch.float32:
            return whole.view(-1).narrow(0, piece.start, piece.numel)  # copied already
        return copy(f"{kind}/{piece.name}", piece.of(optimizer.tensors(kind)))

    weights = {key: copy(f"{MODEL}/{key}", each) for key, each in iterate_weights(engine, ranks)}
    files = {MODEL: weights} if ranks.rank == 0 else {}
    pieces: dict[str, dict[str, list[int]]] = {}
    if optimizer.is_partitioned or ranks.rank == 0:  # otherwise every rank holds everything
        num_files = ranks.world_size if optimizer.is_partitioned else 1
        name = f"fragments-{ranks.rank:05d}-of-{num_files:05d}.safetensors"
        files[name] = {
            f"{kind}/{piece.name}": copy_piece(kind, piece)
            for kind in ("fp32", *optimizer.state_names)
            for piece in optimizer.fragments
        }
        pieces[name] = {piece.name: [piece.start, piece.numel] for piece in optimizer.fragments}
    return Snapshot(dict(position), optimizer.num_updates, files, pieces)


def write_snapshot(checkpoints: Path, snapshot: Snapshot, ranks: Ranks) -> Path:
    """Writes and commits a checkpoint, called by all ranks; the folder of this rank's files."""
    final = checkpoints / snapshot.name
    folder = final.with_suffix(".tmp")
    with together(ranks):
        if ranks.rank == 0:
            remove_folders(final, folder)
            folder.mkdir(parents=True)
    with together(ranks):
        folder.mkdir(parents=True, exist_ok=True)
        files = snapshot.files.items()
        mine = {name: _write_tensors(folder / name, tensors) for name, tensors in files}
    parts = ranks.gather((mine, dict(snapshot.pieces)))
    with together(ranks):
        if ranks.rank == 0:
            described = {name: facts for files, _ in parts for name, facts in files.items()}
            pieces = {name: piece for _, each in parts for name, piece in each.items()}
            _commit(folder, final, snapshot, described, pieces)
    return final if final.is_dir() else folder


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    try:
        save_file(dict(tensors), path, {"format": "pt"})
    except SafetensorError as error:
        raise StorageError(
            f"{path}: cannot be written: {error}; free some space, then run the command again"
        ) from error
    make_durable(path)
    return describe_file(path)


def _commit(
    folder: Path, final: Path, snapshot: Snapshot, files: dict[str, Any], pieces: dict[str, Any]
) -> None:
    """Writes state.json, then COMMITTED when all else is on the disk, and renames the folder."""
    of_tensors = {"num_updates": snapshot.num_updates, "fragments": pieces}
    state = {"format": FORMAT, **snapshot.position, **of_tensors}
    (folder / STATE).write_text(json.dumps(state, indent=1) + "\n")
    make_durable(folder / STATE)
    make_durable(folder)
    files = dict(sorted({**files, STATE: describe_file(folder / STATE)}.items()))
    (folder / COMMITTED).write_text(json.dumps({"files": files}, indent=1) + "\n")
    make_durable(folder / COMMITTED)
    make_durable(folder)
    folder.rename(final)
    make_durable(final.parent)


@dataclass
class CheckpointSaver:
    """Takes snapshots and has them written and uploaded; made and used alike by all ranks."""

    run: RunFolder
    settings: CheckpointSettings
    ranks: Ranks
    store: CheckpointStore | None
    say: Callable[[str], None]
    _copies: dict[str, Tensor] = field(default_factory=dict)
    _thread: Thread | None = None
    _failure: BaseException | None = None
    _in_flight: str = ""

    def __post_init__(self) -> None:
        group = torch.distributed.new_group(backend="gloo", timeout=LONGEST_UPLOAD)
        # Connects now: a launcher that is lost may take the addresses with it.
        torch.distributed.barrier(group=group)
        self.ranks = dataclasses.replace(self.ranks, counts_group=group)

    @property
    def has_failed(self) -> bool:
        """Whether the last save failed on this rank; the others learn of it in `finish`."""
        return self._failure is not None

    def prepare(self, engine: Any, optimizer: ShardedOptimizer) -> None:
        """Makes the memory that copies take, so that the first save is as quick as the others."""
        take_snapshot({}, engine, optimizer, self.ranks, self._copies)

    def save(self, position: Mapping[str, Any], engine: Any, optimizer: ShardedOptimizer) -> None:
        """Saves in the background, called by all ranks at the same step; raises as `finish`."""
        self.finish()
        snapshot = take_snapshot(position, engine, optimizer, self.ranks, self._copies)
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
            done = "written and uploaded" if self.store else "written"
            self.say(f"waited {waited:.1f} s until {self._in_flight} was {done}")
        if self._failure is not None:
            raise self._failure

    def _write(self, snapshot: Snapshot) -> None:
        try:
            folder = write_snapshot(self.run.checkpoints, snapshot, self.ranks)
            if self.ranks.rank == 0:
                replace_file(self.run.newest, newest_json(snapshot.name))
            if self.store is not None:
                self._upload(self.store, folder, snapshot)
            with together(self.ranks):
                if self.ranks.rank == 0:
                    remove_old(self.run.checkpoints, self.settings.keep)
                elif folder.suffix:
                    remove_folders(folder)  # pieces of a node that does not see rank 0's folder
        except BaseException as failure:  # noqa: BLE001 - raised by finish()
            self._failure = failure

    def _upload(self, store: CheckpointStore, folder: Path, snapshot: Snapshot) -> None:
        is_first = self.ranks.rank == 0
        with together(self.ranks):
            store.upload(folder, snapshot.name, [*snapshot.files, *[STATE] * is_first])
            if is_first:
                store.upload_run(self.run)
        with together(self.ranks):
            if is_first:
                store.upload(folder, snapshot.name, [COMMITTED])
                store.note_newest(snapshot.name)
                store.remove_old(self.settings.keep)
