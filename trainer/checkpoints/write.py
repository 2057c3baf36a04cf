"""Writing a checkpoint: copied in memory while training waits, then written, hashed and committed.

The folder is made as `step-00000600.tmp` and renamed when it is whole. A node that does not see
rank 0's folder keeps its own ranks' pieces in a folder of that name until they are uploaded.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from pipeline.storage.faults import StorageError
from pipeline.storage.local import make_durable
from trainer.checkpoints.read import (
    COMMITTED,
    FORMAT,
    MODEL,
    STATE,
    describe_file,
    find_checkpoints,
    step_of,
)
from trainer.engine.partitions import iterate_weights
from trainer.optim.sharded import Fragment, ShardedOptimizer
from trainer.process.ranks import Ranks, together


@dataclass(frozen=True)
class Snapshot:
    """What one rank writes of a checkpoint, in memory that training no longer changes.

    Attributes:
        position: JSON values that a resume needs beside tensors; "step" names the folder.
        num_updates: Updates that the optimizer has made.
        files: Tensors by name, of every file this rank writes.
        pieces: {file: {parameter: [start, numel]}} of this rank's fragments.
    """

    position: Mapping[str, Any]
    num_updates: int
    files: Mapping[str, Mapping[str, Tensor]]
    pieces: Mapping[str, Mapping[str, list[int]]]

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""
        return f"step-{self.position['step']:08d}"


class HostCopies:
    """Copies of tensors in memory that is kept: new memory costs several times the copying."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor's copy, which holds until the next of this name."""
        kept = self._kept.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._kept[name] = kept
        return kept.copy_(tensor.detach())


def take_snapshot(
    position: Mapping[str, Any],
    engine: Any,
    optimizer: ShardedOptimizer,
    ranks: Ranks,
    copies: HostCopies,
) -> Snapshot:
    """Copies what this rank writes; all ranks call it, as under ZeRO-3 they gather the weights."""
    files: dict[str, dict[str, Tensor]] = {}
    pieces: dict[str, dict[str, list[int]]] = {}
    weights = {
        key: copies.copy(f"{MODEL}/{key}", each) for key, each in iterate_weights(engine, ranks)
    }
    if ranks.rank == 0:
        files[MODEL] = weights
    if optimizer.is_partitioned or ranks.rank == 0:  # otherwise every rank holds everything
        num_files = ranks.world_size if optimizer.is_partitioned else 1
        name = f"fragments-{ranks.rank:05d}-of-{num_files:05d}.safetensors"
        files[name] = {
            f"{kind}/{piece.name}": _copy_piece(kind, piece, optimizer, weights, copies)
            for kind in ("fp32", *optimizer.state_names)
            for piece in optimizer.fragments
        }
        pieces[name] = {piece.name: [piece.start, piece.numel] for piece in optimizer.fragments}
    return Snapshot(dict(position), optimizer.num_updates, files, pieces)


def _copy_piece(
    kind: str,
    piece: Fragment,
    optimizer: ShardedOptimizer,
    weights: Mapping[str, Tensor],
    copies: HostCopies,
) -> Tensor:
    """A piece of a state, or of the weights, for which the model's fp32 copy serves."""
    whole = weights.get(piece.name)
    if kind == "fp32" and whole is not None and whole.dtype == torch.float32:
        return whole.view(-1).narrow(0, piece.start, piece.numel)
    return copies.copy(f"{kind}/{piece.name}", piece.of(optimizer.tensors(kind)))


def write_snapshot(checkpoints: Path, snapshot: Snapshot, ranks: Ranks) -> Path:
    """Writes and commits a checkpoint, and returns the folder where this rank's files lie.

    Called by all ranks, whose group must be free for this alone. What any rank could not write is
    raised on all of them.
    """
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


def superseded(names: list[str], keep: int, keep_every: int) -> list[str]:
    """Checkpoints, oldest first, that may go: all but the newest `keep` (0 keeps all).

    Multiples of `keep_every`, unless that is 0, stay too.
    """
    old = names[:-keep] if keep else []
    return [name for name in old if not keep_every or step_of(name) % keep_every]


def remove_old(checkpoints: Path, keep: int, keep_every: int = 0) -> None:
    """Deletes superseded checkpoints and what older saves left. Rank 0 only."""
    finished, unfinished = find_checkpoints(checkpoints)
    names = superseded([path.name for path in finished], keep, keep_every)
    remove_folders(*unfinished, *(checkpoints / name for name in names))


def remove_folders(*folders: Path) -> None:
    """Deletes checkpoints, the marker first: one cut short must not look whole."""
    for folder in folders:
        if folder.is_dir():
            (folder / COMMITTED).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another rank was quicker
                make_durable(folder)
        shutil.rmtree(folder, ignore_errors=True)


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
    folder: Path,
    final: Path,
    snapshot: Snapshot,
    files: dict[str, dict[str, Any]],
    pieces: Mapping[str, Any],
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
