"""Loads weights and optimizer states from checkpoints; files.py says what a checkpoint is made of.

No file is a pickle, because loading a pickle can execute code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from trainer.checkpoints.files import MODEL, read_state, verify_file
from trainer.engine.zero import refresh_weights
from trainer.optim.sharded import ShardedOptimizer
from trainer.process.ranks import Ranks, together


def load_checkpoint(
    path: Path, engine: Any, optimizer: ShardedOptimizer, ranks: Ranks
) -> dict[str, Any]:
    """Loads weights and optimizer states from a checkpoint; every rank has to call it.

    Args:
        path: The checkpoint's folder.
        engine: The DeepSpeed engine, whose model gets the weights.
        optimizer: The optimizer of that engine. It gets this rank's fragments and the number of
            updates.
        ranks: This process and the others of the run.

    Returns:
        The content of state.json.

    Raises:
        ValueError: On some rank, a file was damaged or missing, or the checkpoint lacked values of
            a parameter.
        OSError: A file cannot be read on this rank; the other ranks raise ValueError.
    """
    with together(ranks):
        state = read_state(path)
        _read_fragments(path, state["fragments"], optimizer)
    optimizer.num_updates = state["num_updates"]
    refresh_weights(engine, optimizer)
    return state


def read_weights(path: Path) -> dict[str, Tensor]:
    """Returns the weights with which the model computed, by the names of the parameters.

    They are in the file model.safetensors. Its size and its hash are first compared with those in
    COMMITTED.

    Args:
        path: The checkpoint's folder.

    Returns:
        Tensors on the CPU, in the precision of the run: fp32, or bf16. `read_states` returns the
        fp32 weights that the optimizer of a bf16 run updates.

    Raises:
        ValueError: model.safetensors or COMMITTED is damaged or missing.
    """
    verify_file(path, MODEL)
    return load_file(path / MODEL)


def read_states(path: Path) -> dict[str, dict[str, Tensor]]:
    """Returns the weights and the optimizer's states, put together from the fragments of all ranks.

    Args:
        path: The checkpoint's folder.

    Returns:
        fp32 tensors on the CPU, in the shapes of the parameters. The outer key is "fp32" for
        weights or the name of a state, such as "exp_avg"; the inner key is the parameter's name.

    Raises:
        ValueError: A file of the checkpoint is damaged or missing.
    """
    weights = read_weights(path)
    states = {"fp32": {name: weight.float() for name, weight in weights.items()}}
    for name, pieces in read_state(path)["fragments"].items():
        verify_file(path, name)
        for key, piece in load_file(path / name).items():
            kind, _, parameter = key.partition("/")
            start, numel = pieces[parameter]
            empty = torch.empty(weights[parameter].shape)
            whole = states.setdefault(kind, {}).setdefault(parameter, empty)
            whole.view(-1)[start : start + numel] = piece
    return states


@torch.no_grad()
def _read_fragments(
    path: Path, files: Mapping[str, Mapping[str, list[int]]], optimizer: ShardedOptimizer
) -> None:
    """Copies the values of this rank's fragments from a checkpoint into the optimizer.

    The checkpoint may have been saved by another number of ranks, so one fragment of this rank can
    be spread over several files. Only files that hold some of its values are checked and opened.

    Args:
        path: The checkpoint's folder.
        files: The key "fragments" of state.json, which has the form of
            `trainer.checkpoints.write.Snapshot.pieces`. It says which values of each parameter are
            in which file.
        optimizer: The optimizer, whose weights and states are overwritten.

    Raises:
        ValueError: A file is damaged or missing, or the checkpoint lacks values of a fragment.
    """
    kinds = {kind: optimizer.tensors(kind) for kind in ("fp32", *optimizer.state_names)}
    missing = {piece.name: piece.numel for piece in optimizer.fragments}
    for name, pieces in files.items():
        needed = []
        for fragment in optimizer.fragments:
            start, numel = pieces.get(fragment.name, (0, 0))
            first = max(fragment.start, start)
            stop = min(fragment.start + fragment.numel, start + numel)
            if first < stop:
                place = slice(first - fragment.start, stop - fragment.start)
                needed.append((fragment, place, first - start))
        if not needed:
            continue
        verify_file(path, name)
        with safe_open(path / name, "pt") as file:
            for fragment, place, offset in needed:
                length = place.stop - place.start
                missing[fragment.name] -= length
                for kind, owned in kinds.items():
                    part = file.get_slice(f"{kind}/{fragment.name}")[offset : offset + length]
                    fragment.of(owned)[place].copy_(part)
    lacking = [name for name, numel in missing.items() if numel]
    if lacking:
        names = ", ".join(lacking[:3])
        raise ValueError(f"{path} does not hold all of {names}; it is of another model")
