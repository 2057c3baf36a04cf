"""Checkpoints per parameter, so that any number of ranks and any ZeRO stage reads the same files.

    checkpoints/step-00000600/
        model.safetensors                     weights as the model uses them, fp32 or bf16
        fragments-00000-of-00002.safetensors  rank 0's pieces: "fp32/NAME", "exp_avg/NAME", ...
        state.json                            progress, and which piece of what lies where
        COMMITTED                             sizes and hashes of the others, written last

No pickle anywhere. Generators are keyed to the step, so there is no random state to save.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from pipeline.storage.names import require_plain
from trainer.engine.partitions import refresh_weights
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


def newest_checkpoint(checkpoints: Path) -> Path:
    """The newest committed checkpoint; a FileNotFoundError where there is none."""
    finished, unfinished = find_checkpoints(checkpoints)
    if not finished:
        names = ", ".join(path.name for path in unfinished)
        others = f" (unfinished: {names})" if unfinished else ""
        raise FileNotFoundError(
            f"no committed checkpoint in {checkpoints}{others}; train first, or give another run"
        )
    return finished[-1]


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
    """Restores weights and optimizer states, and returns state.json; called by all ranks.

    A file that any rank needs and that is damaged is a ValueError on all of them.
    """
    with together(ranks):
        state = read_state(path)
        _read_fragments(path, state["fragments"], optimizer)
    optimizer.num_updates = state["num_updates"]
    refresh_weights(engine, optimizer)
    return state


def read_weights(path: Path) -> dict[str, Tensor]:
    """The model's weights on the CPU, by parameter name, checked against COMMITTED."""
    verify_file(path, MODEL)
    with safe_open(path / MODEL, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)


def read_states(path: Path) -> dict[str, dict[str, Tensor]]:
    """Whole weights ("fp32") and optimizer states on the CPU, by kind and parameter name."""
    weights = read_weights(path)
    states = {"fp32": {name: each.float() for name, each in weights.items()}}
    for name, pieces in read_state(path)["fragments"].items():
        verify_file(path, name)
        with safe_open(path / name, "pt") as file:
            for key in file.keys():  # noqa: SIM118  (not a mapping)
                kind, _, parameter = key.partition("/")
                start, numel = pieces[parameter]
                empty = torch.empty(weights[parameter].shape)
                whole = states.setdefault(kind, {}).setdefault(parameter, empty)
                whole.view(-1)[start : start + numel] = file.get_tensor(key)
    return states


def read_marker(path: Path) -> dict[str, dict[str, Any]]:
    """Bytes and sha256 of a checkpoint's files by plain names, from COMMITTED."""
    try:
        files = json.loads((path / COMMITTED).read_bytes())["files"].items()
        described = {name: {key: each[key] for key in ("bytes", "sha256")} for name, each in files}
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is missing; {_remedy(path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path / COMMITTED} does not describe {STATE} ({error!r}); {_remedy(path)}"
        ) from error
    require_plain(described, str(path / COMMITTED))
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


def verify_file(path: Path, name: str) -> None:
    """Checks one file against COMMITTED; a ValueError where it is damaged or missing."""
    files = read_marker(path)
    if name not in files:
        raise ValueError(f"{path / COMMITTED} does not describe {name}; {_remedy(path)}")
    try:
        found = describe_file(path / name)
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is missing; {_remedy(path)}") from error
    for key, value in found.items():
        if value != files[name][key]:
            raise ValueError(
                f"{path / name}: {key} is {value}, {COMMITTED} says {files[name][key]}; {_remedy(path)}"
            )


def describe_file(path: Path) -> dict[str, Any]:
    """Its bytes and sha256, as COMMITTED has them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _remedy(path: Path) -> str:
    return (
        f"the checkpoint is damaged: restore it; or delete the folder {path}, or give --checkpoint.skip_damaged true, "
        "to go back to the one before"
    )
