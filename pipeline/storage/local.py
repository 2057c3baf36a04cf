"""Files of this machine's disks: written whole or not at all, and there after a loss of power."""

import contextlib
import errno
import fcntl
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
_TEMPORARY_NAME = re.compile(r"\..+\.partial-\d+-[0-9a-f]{8}")
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def replace_file(path: Path, data: bytes | Path) -> None:
    """Writes a file, and missing folders, whole or not at all; a loss of power does not undo it.

    Data may be a file that holds them, which is copied without being held in memory. Raises
    StorageError where the disk is full; what was there before still is.
    """
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


def size_of(data: bytes | Path) -> int:
    """How many bytes data are, or the local file that holds them has."""
    return data.stat().st_size if isinstance(data, Path) else len(data)


def make_folder(folder: Path) -> None:
    """Makes a folder on a local disk and those above it that are missing, for good."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:
            reason = os.strerror(errno.ENOTDIR)
            raise NotADirectoryError(errno.ENOTDIR, reason, str(folder)) from error
        make_durable(folder.parent)


def make_durable(path: Path) -> None:
    """Waits until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # network disks may not fsync folders
            raise
    finally:
        os.close(descriptor)


def remove_empty_folders(folder: Path, top: Path) -> None:
    """Removes a folder and those above it that are empty, up to the top, which stays."""
    while folder != top and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def find_temporaries(names: Iterable[str]) -> list[str]:
    """Those among file names that a killed `replace_file` left."""
    return [name for name in names if _TEMPORARY_NAME.fullmatch(name.rpartition("/")[2])]


@contextlib.contextmanager
def scratch_folder(owner: str) -> Iterator[Path]:
    """Keeps temporary files, of programs started here too, in a folder that goes at the end.

    Folders that killed processes left of the same owner, such as the output of a command, go first.
    """
    digest = blake2b(f"{os.getuid()} {owner}".encode(), digest_size=8).hexdigest()
    for left in Path(tempfile.gettempdir()).glob(f"beambert-{digest}-*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    before = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix=f"beambert-{digest}-") as folder, _locked(Path(folder)):
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before[0]
            del os.environ["TMPDIR"]
            os.environ |= {"TMPDIR": before[1]} if before[1] is not None else {}


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds a folder; an OSError where it is another user's, a link, or held by another process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
