"""Saves checkpoints in the background, on the disk and at the URL of the run.

Training waits only until weights and optimizer states are copied in memory. A thread of each rank
then writes, hashes and uploads the copies.

A checkpoint is written to `step-00000600.tmp`, which is renamed when it is complete. A node that
does not see the disk of rank 0 writes the files of its ranks to a folder of the same name on its
own disk, and deletes the folder when they are uploaded.
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
from trainer.checkpoints.files import (
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
"""How long a rank waits for the other ranks to write or upload their files."""
WORTH_SAYING_SECONDS = 1.0
"""A wait of training for a save is reported to the user if it is longer than this."""


@dataclass(frozen=True)
class Snapshot:
    """A copy in memory of what one rank writes into a checkpoint.

    Training does not change the copy while a thread writes it to the disk.

    Attributes:
        position: Facts about the progress of the run that state.json gets, as JSON values. "step"
            is the number in the name of the checkpoint's folder.
        num_updates: Number of updates that the optimizer has made.
        files: The tensors of each file that this rank writes, by the name of the file and then by
            the name of the tensor.
        pieces: The ranges of this rank's fragments, by the name of the file and then by the name of
            the parameter. A range is [index of the first value in the flattened parameter, number
            of values].
    """

    position: Mapping[str, Any]
    num_updates: int
    files: Mapping[str, Mapping[str, Tensor]]
    pieces: Mapping[str, Mapping[str, list[int]]]

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
    """Copies what this rank writes into a checkpoint; every rank has to call it.

    Rank 0 copies the model's weights, which ZeRO-3 gathers from all ranks. If ZeRO partitions the
    optimizer, each rank also copies its own fragments. Otherwise rank 0 copies the optimizer's
    weights and states, because all ranks hold the same.

    Args:
        position: Facts about the progress of the run, for state.json.
        engine: The DeepSpeed engine.
        optimizer: The optimizer of that engine.
        ranks: This process and the others of the run.
        copies: Memory for the copies, by name; empty for the first call, which allocates it. Later
            calls overwrite it, so the previous snapshot must have been written to the disk before.

    Returns:
        The snapshot. Its tensors are in the memory of `copies`.
    """

    def copy(name: str, tensor: Tensor) -> Tensor:
        """Returns a copy of a tensor in CPU memory; later copies of that name reuse the memory."""
        if name not in copies:
            copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return copies[name].copy_(tensor.detach())

    def copy_piece(kind: str, piece: Fragment) -> Tensor:
        """Returns a copy of a fragment, in memory that later snapshots reuse.

        Args:
            kind: "fp32" for the values of the weights, or the name of an optimizer state.
            piece: The fragment.
        """
        whole = weights.get(piece.name)
        if kind == "fp32" and whole is not None and whole.dtype == torch.float32:
            # Rank 0 has copied these values already, as weights of the model.
            return whole.view(-1).narrow(0, piece.start, piece.numel)
        return copy(f"{kind}/{piece.name}", piece.of(optimizer.tensors(kind)))

    weights = {
        name: copy(f"{MODEL}/{name}", weight) for name, weight in iterate_weights(engine, ranks)
    }
    files = {MODEL: weights} if ranks.rank == 0 else {}
    pieces: dict[str, dict[str, list[int]]] = {}
    if optimizer.is_partitioned or ranks.rank == 0:  # without partitions all ranks hold the same
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
    """Writes a checkpoint to the disk; every rank has to call it with its own snapshot.

    Args:
        checkpoints: The folder of all checkpoints.
        snapshot: What this rank writes.
        ranks: This process and the others of the run.

    Returns:
        The folder that holds this rank's files. If this node sees the disk of rank 0, it is the
        complete checkpoint. Otherwise its name ends in ".tmp".

    Raises:
        ValueError: Another rank could not write its files.
        OSError: This rank could not write its files.
    """
    final = checkpoints / snapshot.name
    folder = final.with_suffix(".tmp")
    with together(ranks):
        if ranks.rank == 0:
            remove_folders(final, folder)
            folder.mkdir(parents=True)
    with together(ranks):
        folder.mkdir(parents=True, exist_ok=True)
        written = {
            name: _write_tensors(folder / name, tensors) for name, tensors in snapshot.files.items()
        }
    parts = ranks.gather((written, dict(snapshot.pieces)))
    with together(ranks):
        if ranks.rank == 0:
            described = {name: facts for files, _ in parts for name, facts in files.items()}
            pieces = {name: piece for _, of_rank in parts for name, piece in of_rank.items()}
            _commit(folder, final, snapshot, described, pieces)
    return final if final.is_dir() else folder


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Writes a safetensors file and returns its size and hash, as COMMITTED has them.

    Raises:
        StorageError: The file cannot be written.
    """
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
    """Writes state.json and COMMITTED into a checkpoint's folder and gives it its final name.

    The file COMMITTED is written when all other files are safely on the disk. Only rank 0 calls it.

    Args:
        folder: The folder whose name ends in ".tmp", with the files of the ranks.
        final: The path that the folder gets.
        snapshot: The snapshot of rank 0.
        files: The size and the hash of every rank's files, by name.
        pieces: The ranges of every rank's fragments, in the form of `Snapshot.pieces`.
    """
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
    """Saves checkpoints in the background, at most one at a time.

    Every rank makes a saver, and calls `prepare`, `save` and `finish` when the other ranks do.

    Attributes:
        run: The run's folder.
        settings: The settings of the run's checkpoints.
        ranks: This process and the others of the run, with a process group for saves only.
        store: The copy of the run at a URL, which gets the checkpoints; None if there is no URL.
        say: Shows a message to the user.
        _copies: The memory of snapshots, which each save reuses.
        _thread: The thread of the save in progress, or None.
        _failure: The error of the last save, or None.
        _in_flight: The name of the checkpoint that was saved last or is being saved.
    """

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
        """Makes a process group that only saves use.

        Training communicates while a checkpoint is saved, and both must not share a group.
        """
        group = torch.distributed.new_group(backend="gloo", timeout=LONGEST_UPLOAD)
        # Ranks connect to one another in their first collective, which this barrier is. Later the
        # launcher may be gone, and with it the addresses of the ranks.
        torch.distributed.barrier(group=group)
        self.ranks = dataclasses.replace(self.ranks, counts_group=group)

    @property
    def has_failed(self) -> bool:
        """Returns whether a save has failed on this rank.

        `finish` raises the error of that save.
        """
        return self._failure is not None

    def prepare(self, engine: Any, optimizer: ShardedOptimizer) -> None:
        """Allocates the memory for snapshots, so that the first save is as quick as later ones.

        Args:
            engine: The DeepSpeed engine.
            optimizer: The optimizer of that engine.
        """
        take_snapshot({}, engine, optimizer, self.ranks, self._copies)

    def save(self, position: Mapping[str, Any], engine: Any, optimizer: ShardedOptimizer) -> None:
        """Begins to save a checkpoint; every rank has to call it at the same step.

        It waits for the previous save, copies the tensors and starts a thread that writes them.

        Args:
            position: Facts about the progress of the run, for state.json.
            engine: The DeepSpeed engine.
            optimizer: The optimizer of that engine.

        Raises:
            ValueError: The previous save failed on this rank or on another one.
            OSError: The previous save failed on this rank.
        """
        self.finish()
        snapshot = take_snapshot(position, engine, optimizer, self.ranks, self._copies)
        self._in_flight = snapshot.name
        self._thread = Thread(target=self._write, args=(snapshot,), name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Waits until the save in progress is done.

        Raises:
            ValueError: The save failed on this rank or on another one.
            OSError: The save failed on this rank, because a file could not be read or written.
        """
        began = time.monotonic()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        waited = time.monotonic() - began
        if waited > WORTH_SAYING_SECONDS:
            done = "written and uploaded" if self.store else "written"
            self.say(f"waited {waited:.1f} s until {self._in_flight} was {done}")
        if self._failure is not None:
            raise self._failure

    def _write(self, snapshot: Snapshot) -> None:
        """Writes and uploads a checkpoint and deletes old ones; the body of the thread.

        It raises nothing. An error is remembered for `finish`.
        """
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
                    remove_folders(folder)  # this node does not see the disk of rank 0
        except BaseException as failure:  # noqa: BLE001 - raised by finish()
            self._failure = failure

    def _upload(self, store: CheckpointStore, folder: Path, snapshot: Snapshot) -> None:
        """Uploads this rank's files of a checkpoint.

        Rank 0 uploads COMMITTED when every rank has uploaded its files. Rank 0 also uploads the
        run's other files and deletes old checkpoints at the URL.

        Args:
            store: The copy of the run at a URL.
            folder: The local folder that holds this rank's files.
            snapshot: What this rank has written.
        """
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
