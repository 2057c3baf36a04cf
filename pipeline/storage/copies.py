"""Copies files between folders, if possible without moving their bytes through this machine."""

import os
import tempfile
from functools import partial
from pathlib import Path

from pipeline.storage.faults import driver_errors
from pipeline.storage.folder import Folder
from pipeline.storage.local import (
    make_durable,
    make_folder,
    refuse_other_content,
    replace_file,
)


def describe_copying(source: Folder, target: Folder) -> str:
    """Returns in words how `copy_file` copies files from one folder to another.

    The words complete a sentence whose subject is the files.
    """
    if source.is_local and target.is_local:
        return "are linked (hard links; copies if --output is on another disk)"
    if source.filesystem == target.filesystem:
        return "are copied by the store itself"
    return "are copied through this machine, as --output is on another store"


def moves_bytes(source: Folder, target: Folder) -> bool:
    """Returns whether every byte that `copy_file` copies is read and sent by this machine."""
    return not (source.is_local and target.is_local) and source.filesystem != target.filesystem


def copy_file(source: Folder, target: Folder, name: str, sha256: str) -> None:
    """Copies a file from one folder to the same name in another, whole or not at all.

    On local disks the new file is a hard link to the old one, which takes no space; where that is
    impossible, it is a copy. A store is asked to copy inside itself. Between different stores the
    file is downloaded to a temporary file and uploaded again.

    The content is checked by its sha256 if its bytes pass through this machine. The content of a
    link, and of a copy that a store makes by itself, is not read; the caller checks the sizes.

    Args:
        source: The folder that holds the file.
        target: The other folder. A file of the same name there is replaced.
        name: The name of the file.
        sha256: The hash of the file's content, in hex.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The content has another hash. Nothing was written then.
        StorageError: The disk is full, or the store did not take the file.
    """
    if source.is_local and target.is_local:
        _link(source.local_path(name).resolve(), target.local_path(name), sha256)
    elif source.filesystem == target.filesystem:
        copy = partial(_copy_inside, source.path_of(name), target.path_of(name), target)
        target.ask(copy, name)
    else:
        with tempfile.NamedTemporaryFile(prefix="beambert-copy-") as file:
            source.download(name, Path(file.name))
            refuse_other_content(Path(file.name), sha256, source.locate(name))
            target.write(name, Path(file.name))


def _link(source: Path, target: Path, sha256: str) -> None:
    """Makes a hard link to a local file, or copies the file if links are impossible.

    Raises:
        ValueError: The file was copied, and its content does not have this hash.
    """
    make_folder(target.parent)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk, one without links, or too many links
        replace_file(target, source, sha256)
    else:
        make_durable(target.parent)


def _copy_inside(source: str, target: str, folder: Folder) -> None:
    """Asks the store of a folder to copy one of its objects; both paths are on its filesystem."""
    with driver_errors(target):
        folder.filesystem.cp_file(source, target)
