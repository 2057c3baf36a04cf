"""Checkpoints per parameter, so that any number of ranks and any ZeRO stage reads the same files.

    checkpoints/step-00000600/
        model.safetensors                     weights as the model uses them, fp32 or bf16
        fragments-00000-of-00002.safetensors  rank 0's pieces: "fp32/NAME", "exp_avg/NAME", ...
        state.json                            progress, and which piece of what lies where
        COMMITTED                             sizes and hashes of the others, written last

No pickle anywhere. Generators are keyed to the step, so there is no random state to save.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from pipeline.storage.local import make_durable
from pipeline.storage.names import require_plain
from trainer.engine.zero import refresh_weights
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, together
from trainer.runs.json_files import parse_object

FORMAT = 2
MODEL = "model.safetensors"
STATE = "state.json"
COMMITTED = "COMMITTED"


def step_of(name: str) -> int:
    """The optimizer steps made before a checkpoint, by the name of its folder."""
    return int(name.removeprefix("step-"))


def is_checkpoint(name: str) -> bool:
    """Whether a folder has the name of a checkpoint."""
    return re.fullmatch("step-[0-9]{8,}", name) is not None


def find_checkpoints(checkpoints: Path) -> tuple[list[Path], list[Path]]:
    """Committed checkpoints, oldest first, and folders of saves that never ended."""
    folders = sorted(checkpoints.glob("step-*")) if checkpoints.is_dir() else []
    named = [path for path in folders if is_checkpoint(path.name)]
    finished = [path for path in named if (path / COMMITTED).is_file()]
    return finished, [path for path in folders if path not in finished]


def remove_old(checkpoints: Path, keep: int) -> None:
    """Deletes all but the newest `keep` (0 keeps all) and what older saves left. Rank 0 only."""
    finished, unfinished = find_checkpoints(checkpoints)
    remove_folders(*unfinished, *(finished[:-keep] if keep else []))


def remove_folders(*folders: Path) -> None:
    """Deletes checkpoints, the marker first: one cut short must not look whole."""
    for folder in folders:
        if folder.is_dir():
            (folder / COMMITTED).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another rank was quicker
                make_durable(folder)
        shutil.rmtree(folder, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a committed checkpoint, checked; of no other format."""
    verify_file(path, STATE)
    file = path / STATE
    state = parse_object(file.read_bytes(), str(file), _remedy(path))
    if (found := state.get("format")) != FORMAT:
        raise ValueError(f"{file}: format is {found}, this version reads {FORMAT}")
    return state


def load_checkpoint(
    path: Path, engine: Any, optimizer: ShardedOptimizer, ranks: Ranks
) -> dict[str, Any]:
    """Restores weights and optimizer states, and returns state.json; called by all ranks."""
    with together(ranks):
        state = read_state(path)
        _read_fragments(path, state["fragments"], optimizer)
    optimizer.num_updates = state["num_updates"]
    refresh_weights(engine, optimizer)
    return state


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's weights on the CPU, by parameter name, checked against COMMITTED."""
    verify_file(path, MODEL)
    return load_file(path / MODEL)


def read_states(path: Path) -> dict[str, dict[str, Tensor]]:
    """Whole weights ("fp32") and optimizer states on the CPU, by kind and parameter name."""
    weights = read_weights(path)
    states = {"fp32": {name: each.float() for name, each in weights.items()}}
    for name, pieces in read_state(path)["fragments"].items():
        verify_file(path, name)
        for key, piece in load_file(path / name).items():
            kind, _, parameter = key.partition("/")
            start, numel = pieces[parameter]
            empty = torch.empty(weights[parameter].shape)
            whole = states.setdefault(kind, {}).setdefault(parameter, empty)
            whole.view(-1)[start : start + numel] = piece
    return states


def read_marker(path: Path, where: str | None = None) -> dict[str, dict[str, Any]]:
    """Bytes and sha256 of files by plain names, from the COMMITTED of a path or of `where`."""
    place = f"{where or path}/{COMMITTED}"
    try:
        files = json.loads((path / COMMITTED).read_bytes())["files"].items()
        described = {name: {key: each[key] for key in ("bytes", "sha256")} for name, each in files}
    except FileNotFoundError as error:
        raise ValueError(f"{place} is missing; {_remedy(where or path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{place} does not describe {STATE} ({error!r})"
        raise ValueError(f"{fault}; {_remedy(where or path)}") from error
    require_plain(described, place)
    return described


@torch.no_grad()
def _read_fragments(
    path: Path, files: Mapping[str, Mapping[str, list[int]]], optimizer: ShardedOptimizer
) -> None:
    """Fills this rank's weights and states from every file that holds a part of them."""
    kinds = {kind: optimizer.tensors(kind) for kind in ("fp32", *optimizer.state_names)}
    missing = {piece.name: piece.numel for piece in optimizer.fragments}
    for name, pieces in files.items():
        needed = []
        for mine in optimizer.fragments:
            start, numel = pieces.get(mine.name, (0, 0))
            first, stop = max(mine.start, start), min(mine.start + mine.numel, start + numel)
            if first < stop:
                needed.append((mine, slice(first - mine.start, stop - mine.start), first - start))
        if not needed:
            continue
        verify_file(path, name)
        with safe_open(path / name, "pt") as file:
            for mine, place, offset in needed:
                length = place.stop - place.start
                missing[mine.name] -= length
                for kind, owned in kinds.items():
                    part = file.get_slice(f"{kind}/{mine.name}")[offset : offset + length]
                    mine.of(owned)[place].copy_(part)
    if lacking := [name for name, numel in missing.items() if numel]:
        names = ", ".join(lacking[:3])
        raise ValueError(f"{path} does not hold all of {names}; it is of another model")


def verify_file(path: Path, name: str, where: str | None = None) -> None:
    """Checks one file of a checkpoint against COMMITTED.

    Args:
        path: The checkpoint's folder.
        name: The file's name in it.
        where: The folder's name in messages; None takes its path.

    Raises:
        ValueError: The file is damaged or missing.
    """
    files, place = read_marker(path, where), where or str(path)
    if name not in files:
        raise ValueError(f"{place}/{COMMITTED} does not describe {name}; {_remedy(place)}")
    try:
        found = describe_file(path / name)
    except FileNotFoundError as error:
        raise ValueError(f"{place}/{name} is missing; {_remedy(place)}") from error
    for key, value in found.items():
        if value != (expected := files[name][key]):
            differ = f"{key} is {value}, {COMMITTED} says {expected}"
            raise ValueError(f"{place}/{name}: {differ}; {_remedy(place)}")


def describe_file(path: Path) -> dict[str, Any]:
    """Its bytes and sha256, as COMMITTED has them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _remedy(path: Path | str) -> str:
    return (
        f"the checkpoint is damaged: restore it; or delete the folder {path}, or give "
        "--checkpoint.skip_damaged true, to go back to the one before"
    )
