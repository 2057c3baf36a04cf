"""Writes files on local disks, whole or not at all.

A function that writes returns once the file is safely on the disk, even if power is lost then.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from pipeline.storage.faults import StorageError

TEMPORARY_MARK = ".partial-"
"""Part of the name of every temporary file that `replace_file` writes."""
_TEMPORARY_NAME = re.compile(r"\..+\.partial-\d+-[0-9a-f]{8}")
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def replace_file(path: Path, data: bytes | Path, sha256: str | None = None) -> None:
    """Writes a file whole or not at all, and waits until it is safely on the disk.

    Missing folders are created. A temporary file is written beside the target and renamed.

    Args:
        path: The file to write or replace.
        data: The content, or a local file that holds it, which is copied without being held in
            memory.
        sha256: The hash that the content must have, in hex; None does not check it.

    Raises:
        StorageError: The disk is full. A file that was at `path` before is unchanged.
        IsADirectoryError: There is a folder at `path`.
        ValueError: There is a device or a pipe at `path`; or the content has another hash, and a
            file that was at `path` before is unchanged.
    """
    refuse_other_than_file(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if sha256 is not None:
            refuse_other_content(temporary, sha256, str(data if isinstance(data, Path) else path))
        temporary.replace(path)
        make_durable(path.parent)
    except OSError as error:
        if error.errno not in _DISK_IS_FULL:
            raise
        found = f"no room for its {size_of(data)} bytes: {error.strerror}"
        advice = "free some space and run the same command again; what is finished is kept"
        raise StorageError(f"{path}: {found}; {advice}") from error
    finally:
        temporary.unlink(missing_ok=True)


def refuse_other_than_file(path: Path) -> None:
    """Refuses a place where there is something that is no file, and that must not be replaced.

    Root could otherwise replace /dev/null by a file, which breaks other programs.

    Raises:
        IsADirectoryError: There is a folder.
        ValueError: There is a device or a pipe.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if (path.exists() and not path.is_file()) or path.parent == Path("/dev"):
        says = "is a device or a pipe, and a file is written and then renamed to its name"
        raise ValueError(f"{path}: {says}; give the name of a file")


def refuse_unwritable(path: Path) -> None:
    """Refuses a place to which `replace_file` cannot write, before long work. It writes nothing.

    Raises:
        IsADirectoryError: There is a folder at `path`.
        NotADirectoryError: There is a file where a folder is needed.
        PermissionError: Nothing may be written into the folder.
        ValueError: There is a device or a pipe at `path`.
    """
    refuse_other_than_file(path)
    folder = path.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    error = None
    if not folder.is_dir():
        error = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        error = errno.EACCES
    if error:
        raise OSError(error, os.strerror(error), str(folder))


def refuse_other_content(path: Path, sha256: str, where: str) -> None:
    """Checks the content of a file by its hash.

    Args:
        path: The file.
        sha256: The hash that it must have, in hex.
        where: Where the content is from, for the message.

    Raises:
        ValueError: The content has another hash.
    """
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise ValueError(
            f"{where}: damaged or changed: its sha256 is {actual}, expected {sha256}; run the same"
            " command again, and if it says so again, restore the file"
        )


def size_of(data: bytes | Path) -> int:
    """Returns the number of bytes of `data`, or of the local file that it names."""
    return data.stat().st_size if isinstance(data, Path) else len(data)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, and waits until they are safely on the disk.

    Raises:
        NotADirectoryError: A file has the name of one of the folders.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            reason = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from error
        make_durable(folder.parent)


def make_durable(path: Path) -> None:
    """Waits until the bytes of a file, or the list of names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # network disks may not fsync folders
            raise
    finally:
        os.close(descriptor)


def remove_empty_folders(folder: Path, top: Path) -> None:
    """Removes a folder if it is empty, then its parents that this leaves empty.

    Args:
        folder: The folder to begin with.
        top: A folder above it, which is kept even if it is empty.
    """
    while folder != top and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def find_temporaries(names: Iterable[str]) -> list[str]:
    """Returns the names of temporary files that a killed `replace_file` left behind.

    Args:
        names: Names of files, with or without folders.
    """
    return [name for name in names if _TEMPORARY_NAME.fullmatch(name.rpartition("/")[2])]


@contextlib.contextmanager
def scratch_folder(owner: str) -> Iterator[Path]:
    """Yields a new folder for all temporary files of this process, and removes it at the end.

    While the context lasts, `tempfile` and TMPDIR name the folder, so that the processes that this
    one starts use it too. Folders that killed processes of the same owner left are removed first.

    Args:
        owner: Identifies what the files are made for, such as the output of a command.
    """
    digest = blake2b(f"{os.getuid()} {owner}".encode(), digest_size=8).hexdigest()
    for leftover in Path(tempfile.gettempdir()).glob(f"beambert-{digest}-*"):
        with contextlib.suppress(OSError), _locked(leftover):
            shutil.rmtree(leftover)

    tempdir_before = tempfile.tempdir
    variable_before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix=f"beambert-{digest}-") as folder, _locked(Path(folder)):
        tempfile.tempdir = folder
        os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = tempdir_before
            del os.environ["TMPDIR"]
            if variable_before is not None:
                os.environ["TMPDIR"] = variable_before


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder while the context lasts.

    Raises:
        OSError: The folder belongs to another user, is a link, or is locked by another process.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
