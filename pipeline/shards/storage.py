"""Files at any fsspec URL: opened, listed, read by range with a length check, written whole or not at all."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

TEMPORARY_MARK = ".partial-"


def open_filesystem(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The filesystem of a URL or local path, and the path on it.

    Raises:
        ValueError: No filesystem is known for the URL's protocol, or its driver is not installed.
    """
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **(storage_options or {}))
    except (ImportError, ValueError) as error:
        raise ValueError(f"{url}: cannot be opened: {error}") from error
    return filesystem, str(path).rstrip("/")


def is_local(filesystem: Any) -> bool:
    """Whether files are on this machine's own disks, where a rename is atomic."""
    return isinstance(filesystem, LocalFileSystem)


def write_atomic(filesystem: Any, path: str, data: bytes) -> None:
    """Writes a file whole or not at all: by rename on local disks, by one upload and a size check elsewhere."""
    if is_local(filesystem):
        _replace_local(path, data)
        return
    # Never `with fs.open(path, "wb")` around a producer: leaving it by an exception publishes the partial object.
    filesystem.pipe_file(path, data)
    filesystem.invalidate_cache()
    stored = filesystem.size(path)
    if stored != len(data):
        raise OSError(f"{path}: {len(data)} bytes were uploaded, the store holds {stored}")


def read_range(filesystem: Any, path: str, start: int, stop: int) -> bytes:
    """Bytes start to stop - 1 of a file.

    Raises:
        OSError: The store returned another number of bytes than asked for: some cut a body short without an error.
    """
    data: bytes = filesystem.cat_file(path, start=start, end=stop)
    if len(data) != stop - start:
        raise OSError(f"{path}: asked for bytes {start}-{stop}, got {len(data)} of {stop - start}")
    return data


def read_file(filesystem: Any, path: str) -> bytes:
    """A whole file, its length checked against the store's listing."""
    return read_range(filesystem, path, 0, filesystem.size(path))


def list_files(filesystem: Any, folder: str) -> dict[str, int]:
    """Sizes in bytes of every file below a folder by its path relative to it; empty where there is no folder."""
    filesystem.invalidate_cache()
    found = filesystem.find(folder, detail=True)
    prefix = f"{folder}/"
    return {name.removeprefix(prefix): int(info["size"]) for name, info in sorted(found.items())}


def remove_files(filesystem: Any, folder: str, names: list[str]) -> None:
    """Removes files below a folder, named relative to it, and on local disks the folders that this empties."""
    for name in names:
        filesystem.rm_file(f"{folder}/{name}")
    if is_local(filesystem):
        for parent in sorted({str(Path(folder, name).parent) for name in names}, key=len, reverse=True):
            _remove_empty_folders(parent, folder)


def _replace_local(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    Path(folder).mkdir(parents=True, exist_ok=True)
    temporary = Path(folder, f".{name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_empty_folders(folder: str, top: str) -> None:
    current = Path(folder)
    while current != Path(top) and current.is_dir() and not any(current.iterdir()):
        current.rmdir()
        current = current.parent
