"""Finds, checks and deletes the checkpoints in a local folder, without loading tensors.

A checkpoint is a folder with these files:

    checkpoints/step-00000600/
        model.safetensors                     weights as the model uses them, fp32 or bf16
        fragments-00000-of-00002.safetensors  rank 0's fragments: "fp32/NAME", "exp_avg/NAME", ...
        state.json                            progress, and which fragments each file holds
        COMMITTED                             sizes and hashes of the other files, written last

A fragment is the range of a parameter's values that one rank updates. Fragments are stored under
the names of their parameters, so a run can continue with another number of ranks or another ZeRO
stage. COMMITTED marks a checkpoint as complete, so a folder without it was not finished.

No file is a pickle, because loading a pickle can execute code. Random numbers are derived from the
step, so there is no state of random generators to save.
"""

import contextlib
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from pipeline.storage.local import make_durable
from pipeline.storage.names import require_plain
from trainer.runs.json_files import parse_object

FORMAT = 2
"""The version of the format of checkpoints, which state.json names."""
MODEL = "model.safetensors"
STATE = "state.json"
COMMITTED = "COMMITTED"
"""The name of the file that marks a checkpoint as complete."""


def step_of(name: str) -> int:
    """Returns the number of optimizer steps before a checkpoint was saved.

    Args:
        name: The name of the checkpoint's folder, such as step-00000600.
    """
    return int(name.removeprefix("step-"))


def is_checkpoint(name: str) -> bool:
    """Returns whether the name of a folder is the name of a checkpoint, such as step-00000600."""
    return re.fullmatch("step-[0-9]{8,}", name) is not None


def find_checkpoints(checkpoints: Path) -> tuple[list[Path], list[Path]]:
    """Returns the complete checkpoints in a folder, and the remains of saves that did not finish.

    Args:
        checkpoints: The folder of all checkpoints; it does not have to exist.

    Returns:
        The folders of complete checkpoints, oldest first, and all other folders whose names begin
        with "step-".
    """
    folders = sorted(checkpoints.glob("step-*")) if checkpoints.is_dir() else []
    named = [path for path in folders if is_checkpoint(path.name)]
    finished = [path for path in named if (path / COMMITTED).is_file()]
    return finished, [path for path in folders if path not in finished]


def remove_old(checkpoints: Path, keep: int) -> None:
    """Deletes old checkpoints and the remains of saves that did not finish. Only rank 0 calls it.

    Args:
        checkpoints: The folder of all checkpoints.
        keep: The number of complete checkpoints that stay, which are the newest; 0 keeps all.
    """
    finished, unfinished = find_checkpoints(checkpoints)
    remove_folders(*unfinished, *(finished[:-keep] if keep else []))


def remove_folders(*folders: Path) -> None:
    """Deletes the folders of checkpoints; a folder that does not exist is skipped.

    COMMITTED is deleted first, so that a checkpoint does not look complete if the process is killed
    before the other files are deleted.
    """
    for folder in folders:
        if folder.is_dir():
            (folder / COMMITTED).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another rank deleted the folder first
                make_durable(folder)
        shutil.rmtree(folder, ignore_errors=True)


def read_state(path: Path) -> dict[str, Any]:
    """Returns the content of a checkpoint's state.json, after a check of its size and hash.

    Args:
        path: The checkpoint's folder.

    Raises:
        ValueError: state.json or COMMITTED is damaged or missing, or the checkpoint was written in
            another format than `FORMAT`.
    """
    verify_file(path, STATE)
    file = path / STATE
    state = parse_object(file.read_bytes(), str(file), _remedy(path))
    if state.get("format") != FORMAT:
        raise ValueError(f"{file}: format is {state.get('format')}, this version reads {FORMAT}")
    return state


def read_marker(path: Path, where: str | None = None) -> dict[str, dict[str, Any]]:
    """Returns what COMMITTED says about the other files of a checkpoint.

    Args:
        path: The checkpoint's folder.
        where: What messages call the folder, such as the URL that it is downloaded from; None means
            its path.

    Returns:
        The size and the hash of each file by its name, under the keys "bytes" and "sha256".

    Raises:
        ValueError: COMMITTED is missing or damaged, or names a file that is not directly inside
            the folder.
    """
    place = f"{where or path}/{COMMITTED}"
    try:
        files = json.loads((path / COMMITTED).read_bytes())["files"].items()
        described = {
            name: {key: facts[key] for key in ("bytes", "sha256")} for name, facts in files
        }
    except FileNotFoundError as error:
        raise ValueError(f"{place} is missing; {_remedy(where or path)}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{place} does not describe {STATE} ({error!r})"
        raise ValueError(f"{fault}; {_remedy(where or path)}") from error
    require_plain(described, place)
    return described


def verify_file(path: Path, name: str, where: str | None = None) -> None:
    """Compares the size and the hash of one file of a checkpoint with COMMITTED.

    Args:
        path: The checkpoint's folder.
        name: The name of the file in that folder.
        where: What messages call the folder, such as the URL that it is downloaded from; None means
            its path.

    Raises:
        ValueError: The file or COMMITTED is damaged or missing.
    """
    files = read_marker(path, where)
    place = where or str(path)
    if name not in files:
        raise ValueError(f"{place}/{COMMITTED} does not describe {name}; {_remedy(place)}")
    try:
        actual = describe_file(path / name)
    except FileNotFoundError as error:
        raise ValueError(f"{place}/{name} is missing; {_remedy(place)}") from error
    for key, value in actual.items():
        expected = files[name][key]
        if value != expected:
            differ = f"{key} is {value}, {COMMITTED} says {expected}"
            raise ValueError(f"{place}/{name}: {differ}; {_remedy(place)}")


def describe_file(path: Path) -> dict[str, Any]:
    """Returns the size and the hash of a file under the keys of COMMITTED, "bytes" and "sha256"."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _remedy(path: Path | str) -> str:
    """Returns the end of an error message, which says what to do about a damaged checkpoint."""
    return (
        f"the checkpoint is damaged: restore it; or delete the folder {path}, or give "
        "--checkpoint.skip_damaged true, to go back to the one before"
    )
