"""Checkpoints per parameter, so that any number of ranks and any ZeRO stage reads the same files. Imports torch.

    checkpoints/step-00000600/model.safetensors                     weights as the model uses them, fp32 or bf16
                              fragments-00000-of-00002.safetensors  rank 0's pieces: "fp32/NAME", "exp_avg/NAME", ...
                              state.json                            progress, and which piece of what lies where
                              COMMITTED                             sizes and hashes of the others, written last

A checkpoint is written into `step-00000600.tmp` and renamed when it is whole. No pickle anywhere. Generators are
keyed to the step (`trainer.engine.seed_dropout`), so there is no random state to save.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from trainer.optim.sharded import ShardedOptimizer
from trainer.partitions import gather_weights, refresh_weights
from trainer.ranks import Ranks, together

FORMAT = 1
MODEL = "model.safetensors"
STATE = "state.json"
COMMITTED = "COMMITTED"


def step_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint after `step` optimizer steps lies."""
    return checkpoints / f"step-{step:08d}"


def find_checkpoints(checkpoints: Path) -> tuple[list[Path], list[Path]]:
    """Committed checkpoints, oldest first, and folders of saves that never ended."""
    folders = sorted(checkpoints.glob("step-*")) if checkpoints.is_dir() else []
    finished = [path for path in folders if re.fullmatch(r"step-\d{8,}", path.name) and (path / COMMITTED).is_file()]
    return finished, [path for path in folders if path not in finished]


def newest_checkpoint(checkpoints: Path) -> Path:
    """The newest committed checkpoint.

    Raises:
        FileNotFoundError: There is none.
    """
    finished, unfinished = find_checkpoints(checkpoints)
    if not finished:
        others = f" (unfinished: {', '.join(path.name for path in unfinished)})" if unfinished else ""
        raise FileNotFoundError(f"no committed checkpoint in {checkpoints}{others}; train first, or give another run")
    return finished[-1]


def save_checkpoint(
    checkpoints: Path, position: Mapping[str, Any], engine: Any, optimizer: ShardedOptimizer, ranks: Ranks
) -> Path:
    """Writes a checkpoint; called by all ranks, which share the folder.

    Args:
        checkpoints: The run's folder of checkpoints.
        position: JSON values that a resume needs beside tensors; "step", the optimizer steps made, names the folder.
        engine: DeepSpeed engine of the model.
        optimizer: The optimizer the engine was given.
        ranks: This rank and the others.
    """
    final = step_folder(checkpoints, position["step"])
    folder = final.with_suffix(".tmp")
    if ranks.rank == 0:
        _remove(final, folder)
        folder.mkdir(parents=True)
    torch.distributed.barrier(group=ranks.counts_group)
    mine = _write_fragments(folder, optimizer, ranks)
    weights = gather_weights(engine, ranks)
    if ranks.rank == 0:
        save_file(weights, folder / MODEL, {"format": "pt"})
    parts: list[Any] = [None] * ranks.world_size
    torch.distributed.all_gather_object(parts, mine, group=ranks.counts_group)
    if ranks.rank == 0:
        pieces = {name: piece for part in parts for name, piece in part.items()}
        state = {"format": FORMAT, **position, "num_updates": optimizer.num_updates, "fragments": pieces}
        (folder / STATE).write_text(json.dumps(state, indent=1) + "\n")
        _commit(folder, final)
    torch.distributed.barrier(group=ranks.counts_group)
    return final


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a committed checkpoint, checked.

    Raises:
        ValueError: It is damaged or of another format.
    """
    _verify(path, STATE)
    state: dict[str, Any] = json.loads((path / STATE).read_bytes())
    if state["format"] != FORMAT:
        raise ValueError(f"{path / STATE}: format is {state['format']}, this version reads {FORMAT}")
    return state


def load_checkpoint(path: Path, engine: Any, optimizer: ShardedOptimizer, ranks: Ranks) -> dict[str, Any]:
    """Restores weights and optimizer states on any number of ranks; called by all of them.

    Returns:
        state.json.

    Raises:
        ValueError: A file this rank or another needs is damaged or missing a parameter; the same on every rank.
    """
    with together(ranks):
        state = read_state(path)
        _read_fragments(path, state["fragments"], optimizer)
    optimizer.num_updates = state["num_updates"]
    refresh_weights(engine, optimizer)
    return state


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's weights on the CPU, by parameter name, checked against COMMITTED."""
    _verify(path, MODEL)
    with safe_open(path / MODEL, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)


def remove_old(checkpoints: Path, keep: int) -> None:
    """Deletes all but the newest `keep` committed checkpoints, and what older saves left; 0 keeps all. Rank 0 only."""
    finished, unfinished = find_checkpoints(checkpoints)
    _remove(*unfinished, *(finished[:-keep] if keep else []))


def _write_fragments(folder: Path, optimizer: ShardedOptimizer, ranks: Ranks) -> dict[str, dict[str, list[int]]]:
    """Writes this rank's pieces; returns {file: {parameter: [start, numel]}}, empty where it has nothing to write."""
    if not optimizer.is_partitioned and ranks.rank > 0:
        return {}  # every rank holds everything
    num_files = ranks.world_size if optimizer.is_partitioned else 1
    name = f"fragments-{ranks.rank:05d}-of-{num_files:05d}.safetensors"
    kinds = {kind: optimizer.tensors(kind) for kind in ("fp32", *optimizer.state_names)}
    tensors = {
        f"{kind}/{piece.name}": piece.of(owned).detach().cpu().clone()
        for kind, owned in kinds.items()
        for piece in optimizer.fragments
    }
    save_file(tensors, folder / name)
    return {name: {piece.name: [piece.start, piece.numel] for piece in optimizer.fragments}}


@torch.no_grad()
def _read_fragments(path: Path, files: Mapping[str, Mapping[str, list[int]]], optimizer: ShardedOptimizer) -> None:
    """Fills this rank's weights and states from every file that holds a part of them."""
    kinds = {kind: optimizer.tensors(kind) for kind in ("fp32", *optimizer.state_names)}
    missing = {piece.name: piece.numel for piece in optimizer.fragments}
    for name, pieces in files.items():
        needed = [
            (mine, max(mine.start, start), min(mine.start + mine.numel, start + numel))
            for mine in optimizer.fragments
            for start, numel in [pieces.get(mine.name, (0, 0))]
        ]
        needed = [(mine, start, stop) for mine, start, stop in needed if start < stop]
        if needed:
            _verify(path, name)
            with safe_open(path / name, "pt") as file:
                for kind, owned in kinds.items():
                    for mine, start, stop in needed:
                        offset = pieces[mine.name][0]
                        part = file.get_slice(f"{kind}/{mine.name}")[start - offset : stop - offset]
                        mine.of(owned)[start - mine.start : stop - mine.start].copy_(part)
        for mine, start, stop in needed:
            missing[mine.name] -= stop - start
    lacking = [name for name, numel in missing.items() if numel]
    if lacking:
        raise ValueError(f"{path} does not hold all of {', '.join(lacking[:3])}; it is of another model")


def _commit(folder: Path, final: Path) -> None:
    """Writes COMMITTED last, makes everything durable and gives the folder its name."""
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    (folder / COMMITTED).write_text(json.dumps({"files": files}, indent=1) + "\n")
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    folder.rename(final)


def _verify(path: Path, name: str) -> None:
    """Checks one file against COMMITTED."""
    remedy = f"the checkpoint is damaged: restore it, or delete the folder {path} to go back to the one before"
    try:
        expected = json.loads((path / COMMITTED).read_bytes())["files"][name]
        found = {"bytes": (path / name).stat().st_size, "sha256": _sha256(path / name)}
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is missing; {remedy}") from error
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path / COMMITTED} does not describe {name} ({error!r}); {remedy}") from error
    for key, value in found.items():
        if value != expected[key]:
            raise ValueError(f"{path / name}: {key} is {value}, {COMMITTED} says {expected[key]}; {remedy}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(*folders: Path) -> None:
    for folder in folders:
        # The marker goes first: a deletion that is interrupted must not leave a checkpoint that looks whole.
        (folder / COMMITTED).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
