"""Gives access to the files of one folder, on a local disk or at any URL that fsspec can open.

Files are listed, read whole or by ranges with their lengths checked, and written whole or not at
all. A request to a store is repeated if its error may pass (`pipeline.storage.faults`); a local
disk is asked once.
"""

import contextlib
import io
import json
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.storage import faults
from pipeline.storage.addresses import refuse_misspelt
from pipeline.storage.ahead import map_ahead
from pipeline.storage.local import remove_empty_folders, replace_file, size_of
from pipeline.storage.missing_packages import describe_missing
from pipeline.storage.names import stays_below
from pipeline.storage.option_variables import fill_in_variables
from pipeline.storage.ranged_file import BUFFER_BYTES, RangedFile
from pipeline.storage.secret_values import find_password, learn

Result = TypeVar("Result")


@dataclass(frozen=True)
class Folder:
    """A folder at a URL or local path; its files are named by their paths relative to it.

    The filesystem is opened when it is first needed and is not pickled with the folder.

    Attributes:
        url: The URL or local path.
        options: Options of the fsspec filesystem, such as keys; None for none. A text `${NAME}` is
            replaced by that environment variable where the filesystem is opened.
    """

    url: str
    options: Mapping[str, Any] | None = field(default=None, repr=False, hash=False)

    @classmethod
    def on(cls, filesystem: Any, path: str, options: Mapping[str, Any] | None = None) -> "Folder":
        """Returns a folder on an fsspec filesystem that is open already.

        Args:
            filesystem: The filesystem.
            path: The path of the folder on it.
            options: The options that the filesystem was opened with, if some are `${NAME}`. The
                filesystem itself has their values, which must not be pickled with the folder.
        """
        given = options or {}
        named = {name: given.get(name, value) for name, value in filesystem.storage_options.items()}
        folder = cls(str(filesystem.unstrip_protocol(path)), named)
        folder.__dict__["_opened"] = filesystem, path
        return folder

    @classmethod
    def of_file(cls, url: str, options: Mapping[str, Any] | None = None) -> tuple["Folder", str]:
        """Returns the folder that holds the file at a URL, and the file's name in the folder."""
        whole = cls(url, options)
        parent, _, name = whole.path.rpartition("/")
        folder = cls.on(whole.filesystem, parent, options)
        folder.__dict__["_prefix"] = whole.path.removesuffix(name)  # some filesystems have no root
        return folder, name

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The fsspec filesystem, and the path of the folder on it."""
        options = fill_in_variables(self.options or {})
        learn(options)
        refuse_misspelt(self.url)
        faults.refuse_unresolved(self.url, options)
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a bar for every file
        if "@" in self.url and (password := find_password(self.url)):
            learn({"password": password})
        try:
            filesystem, path = fsspec.core.url_to_fs(self.url, **options)
        except (ImportError, ValueError) as error:
            cause = describe_missing(error) or error
            raise ValueError(f"{self.url}: cannot be opened: {cause}") from error
        if "::" in self.url and isinstance(filesystem, LocalFileSystem):
            found = "'::' in a path is taken for the end of the name of a filesystem, such as zip::"
            raise ValueError(f"{self.url}: {found}; rename the folder, or give another one")
        return filesystem, str(path).rstrip("/")

    @cached_property
    def filesystem(self) -> Any:
        """The fsspec filesystem of the folder, opened when it is first asked for.

        Raises:
            ValueError: The URL has an unknown scheme, or the package that serves its scheme is not
                installed; or it is a local path with "::", of which fsspec would drop a part.
        """
        return self._opened[0]

    @cached_property
    def path(self) -> str:
        """The folder's path on its filesystem, without a slash at its end."""
        return self._opened[1]

    @cached_property
    def _prefix(self) -> str:
        """Text that is put before a file's name to make its path on the filesystem."""
        return f"{self.path}/"

    @property
    def is_local(self) -> bool:
        """Returns whether the files are on a disk of this machine, where a rename is atomic."""
        return isinstance(self.filesystem, LocalFileSystem)

    def __str__(self) -> str:
        return self.url

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self.options}

    def __truediv__(self, name: str) -> "Folder":
        """Returns the subfolder of a name, on the same filesystem."""
        folder = Folder(f"{self.url.rstrip('/')}/{name}", self.options)
        if "_opened" in self.__dict__:
            folder.__dict__["_opened"] = self.filesystem, self._prefix + name
        return folder

    def locate(self, name: str = "") -> str:
        """Returns the URL of a file, or of the folder itself, for messages.

        On a local disk it is the path.
        """
        path = self.path_of(name)
        return path if self.is_local else str(self.filesystem.unstrip_protocol(path))

    def local_path(self, name: str = "") -> Path:
        """Returns the path of a file, or of the folder itself; the folder must be local."""
        assert self.is_local, f"{self.locate()} is not on a local disk"
        return Path(self._prefix + name)

    def contains(self, other: "Folder") -> bool:
        """Returns whether another folder is this one or is below it, at any depth.

        Links of a local disk are followed.
        """
        if self.filesystem != other.filesystem:
            return False
        path = other._real_path()
        return self._real_path() in (path, *path.parents)

    def _real_path(self) -> PurePosixPath:
        """Returns the path of the folder on its filesystem, without links if it is local."""
        return PurePosixPath(self.local_path().resolve() if self.is_local else self.path)

    def path_of(self, name: str = "") -> str:
        """Returns the path of a file on the filesystem; with an empty name, the folder's."""
        return self._prefix + name if name else self.path

    def exists(self, name: str = "") -> bool:
        """Returns whether a file or folder of this name exists; without a name, the folder itself.

        Raises:
            NoBucketError: The bucket of the URL does not exist.
        """
        path = self.path_of(name)
        return self._found(name, self.ask(lambda: bool(self.filesystem.exists(path)), name))

    def is_file(self, name: str = "") -> bool:
        """Returns whether a file of this name exists; a folder does not count.

        Raises:
            NoBucketError: The bucket of the URL does not exist.
        """
        path = self.path_of(name)
        if self.is_local:
            return bool(self.filesystem.isfile(path))
        return self._found(name, self.ask(lambda: _is_file(self.filesystem, path), name))

    def _found(self, name: str, is_there: bool) -> bool:
        """Completes the answer to whether a file exists: if it does not, its bucket must exist.

        Args:
            name: The file, for messages.
            is_there: The answer, which is returned unchanged.

        Raises:
            NoBucketError: The file does not exist, and neither does its bucket.
        """
        if not is_there:
            self.refuse_absent_bucket(name)
        return is_there

    def refuse_absent_bucket(self, name: str = "") -> None:
        """Checks, after a file was not found, that at least its bucket exists.

        Raises:
            NoBucketError: The bucket of the URL does not exist.
        """
        if not self.is_local:
            faults.refuse_absent_bucket(self.locate(name), self.filesystem, self.path)

    def size(self, name: str, attempts: int = faults.ATTEMPTS) -> int:
        """Returns the size of a file in bytes, as the store reports it.

        Args:
            name: The file.
            attempts: How often the store is asked at most (`ask`).

        Raises:
            FileNotFoundError: The file does not exist.
        """
        path = self._prefix + name

        def attempt() -> int:
            with faults.driver_errors(path):
                return int(self.filesystem.size(path))

        return self.ask(attempt, name, attempts)

    def list(self) -> dict[str, int]:
        """Returns the size in bytes of every file below the folder, at any depth, by its name.

        The result is empty if the folder does not exist.

        Raises:
            NoBucketError: The bucket of the URL does not exist.
            ValueError: The key of an object would lead out of the folder if it were a path.
        """
        self.filesystem.invalidate_cache()
        try:
            infos = self.ask(lambda: self.filesystem.find(self.path, detail=True))
        except FileNotFoundError:  # of gcsfs
            self.refuse_absent_bucket()
            raise
        self._found("", bool(infos))

        files = sorted(infos.items())
        sizes = {name.removeprefix(self._prefix): int(info["size"]) for name, info in files}
        for name in sizes:
            self._refuse_leaving(name)
        return sizes

    def read(self, name: str) -> bytes:
        """Returns the bytes of a whole file, and checks that they are as many as the store reports.

        Raises:
            FileNotFoundError: The file does not exist.
            StorageError: Every attempt failed, or returned more or fewer bytes than asked for.
        """
        return self.read_range(name, 0, self.size(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Returns the bytes `start` to `stop - 1` of a file.

        Raises:
            FileNotFoundError: The file does not exist.
            CutFileError: A local file ends before `stop`.
            StorageError: Every attempt failed, or returned more or fewer bytes than asked for.
        """
        read = partial(self.read_once, name, start, stop)
        if self.is_local:
            return read()
        where = f"{self.locate(name)}, bytes {start}-{stop}"
        return faults.call_patiently(where, read, faults.ATTEMPTS, self.filesystem)

    def read_once(self, name: str, start: int, stop: int) -> bytes:
        """Reads the bytes `start` to `stop - 1` of a file by a single request.

        It is for callers that repeat requests themselves. The errors of the driver are passed on.

        Raises:
            CutFileError: A local file ends before `stop`.
            SizeError: A store returned another number of bytes than asked for. Some stores cut an
                answer short without an error.
        """
        path = self._prefix + name
        if self.is_local:
            _refuse_pipe(path)
        with faults.driver_errors(path):
            data = self._cat(path, start, stop)
        if len(data) != stop - start:
            is_cut = self.is_local and Path(path).stat().st_size < stop
            kind = faults.CutFileError if is_cut else faults.SizeError
            raise kind(f"{path}: asked for bytes {start}-{stop}, got {len(data)} of {stop - start}")
        return data

    def _cat(self, path: str, start: int, stop: int) -> bytes:
        """Reads a range of a file; the result is shorter if the file ends inside the range."""
        if self.is_local:
            with open(path, "rb", buffering=0) as file:
                # A damaged index may ask for any range, so no more memory is taken than the file
                # can fill.
                num_bytes = min(stop, os.fstat(file.fileno()).st_size) - start
                if num_bytes <= 0:
                    return b""
                file.seek(start)
                return file.read(num_bytes)
        return bytes(self.filesystem.cat_file(path, start=start, end=stop))

    def read_each(
        self, names: Sequence[str], sizes: Mapping[str, int] | None = None
    ) -> Iterator[bytes]:
        """Yields the contents of small files in the order of `names`, lazily.

        Each file is read by one request. Threads read some files ahead of the caller.

        Args:
            names: The files.
            sizes: The sizes of the files in bytes, by name. The lengths of the contents are checked
                by them. If None, the folder is listed to get the sizes.

        Raises:
            FileNotFoundError: A file is not in `sizes` or in the list of the folder. This is raised
                by the call itself, before anything is read.
            StorageError: Every attempt failed, or returned more or fewer bytes than asked for.
        """
        if sizes is None:
            sizes = self.list() if names else {}
        if missing := [name for name in names if name not in sizes]:
            what = f"{missing[0]} and {len(missing) - 1} more are missing"
            raise FileNotFoundError(f"{self.locate()}: {what}")
        return map_ahead(lambda name: self.read_range(name, 0, sizes[name]), names)

    def read_many(self, names: Sequence[str]) -> dict[str, bytes]:
        """Returns the contents of small files by their names.

        Raises:
            FileNotFoundError: A file is missing.
            StorageError: Every attempt failed, or returned more or fewer bytes than asked for.
        """
        return dict(zip(names, self.read_each(names), strict=True))

    def open(self, name: str) -> io.BufferedReader:
        """Opens a file for reading.

        On a store, every read is a request of its own, whose length is checked and which is
        repeated after errors that may pass.

        Raises:
            FileNotFoundError: The file does not exist.
            ValueError: The file is a named pipe.
        """
        if self.is_local:
            _refuse_pipe(self._prefix + name)
            return self.local_path(name).open("rb")
        file = RangedFile(partial(self.read_range, name), self.size(name), self._prefix + name)
        return io.BufferedReader(file, BUFFER_BYTES)

    def download(self, name: str, target: Path) -> None:
        """Copies a file to a local path, without holding it in memory.

        Raises:
            FileNotFoundError: The file does not exist.
            StorageError: Every attempt failed, or sent more or fewer bytes than the file has.
        """

        def attempt() -> None:
            with faults.driver_errors(self._prefix + name):
                expected = self.filesystem.size(self._prefix + name)
                self.filesystem.get_file(self._prefix + name, str(target))
            num_bytes = target.stat().st_size
            if num_bytes != expected:
                raise faults.SizeError(f"got {num_bytes} of {expected} bytes")

        self.ask(attempt, name)

    def write(self, name: str, data: bytes | Path) -> None:
        """Writes bytes, or a copy of a local file, either whole or not at all.

        On a local disk a temporary file is written and renamed. On a store the file is uploaded at
        once, and the size that the store then reports is checked.

        Raises:
            NoBucketError: The bucket of the URL does not exist.
            StorageError: The disk is full, or the store did not take the file. There is then no
                file with this name.
        """
        if self.is_local:
            replace_file(self.local_path(name), data)
            return
        try:
            self.ask(partial(self._upload, self._prefix + name, data), name)
        except FileNotFoundError:
            self.refuse_absent_bucket(name)
            raise

    def _upload(self, path: str, data: bytes | Path) -> None:
        """Uploads a file once and checks the size that the store then reports."""
        # Never `with fs.open(path, "wb")` around a producer: leaving it by an exception publishes
        # the partial object.
        with faults.driver_errors(path):
            if isinstance(data, Path):
                self.filesystem.put_file(str(data), path)
            else:
                self.filesystem.pipe_file(path, data)
            self.filesystem.invalidate_cache()
            stored = self._stored_bytes(path)
        if stored is None:
            what = f"the store said that it took the {size_of(data)} bytes and has no such object"
            raise faults.SizeError(f"{what}: look for a rule, proxy or quota that drops uploads")
        if stored != size_of(data):
            self.filesystem.rm_file(path)
            what = f"{size_of(data)} bytes were uploaded, the store held {stored}"
            raise faults.SizeError(f"{what}, which were removed")

    def _stored_bytes(self, path: str) -> int | None:
        """Returns the size in bytes of an object after its upload, or None if it is not there."""
        try:
            return int(self.filesystem.size(path))
        except FileNotFoundError:
            return None

    def remove(self, names: Iterable[str]) -> None:
        """Removes files. Names of files that do not exist are ignored.

        On a local disk, folders that are left empty are removed as well.

        Raises:
            ValueError: A name leads out of the folder. Nothing has been removed then.
        """
        names = tuple(names)
        for name in names:
            self._refuse_leaving(name)
        deque(map_ahead(self._remove, names), maxlen=0)
        if self.is_local:
            parents = {self.local_path(name).parent for name in names}
            for parent in sorted(parents, key=lambda path: len(path.parts), reverse=True):
                remove_empty_folders(parent, self.local_path())

    def _remove(self, name: str) -> None:
        """Removes one file, if it exists."""
        # An earlier attempt may have removed it although its answer was lost.
        with contextlib.suppress(FileNotFoundError):
            self.ask(partial(self.filesystem.rm_file, self._prefix + name), name)

    def _refuse_leaving(self, name: str) -> None:
        """Raises ValueError if a file's name would lead out of the folder."""
        if not stays_below(name):
            found = f"found the key {name!r}, which leads out of the folder"
            raise ValueError(f"{self.locate()}: {found}; remove that object")

    def ask(
        self, call: Callable[[], Result], name: str = "", attempts: int = faults.ATTEMPTS
    ) -> Result:
        """Calls a function that makes a request, and calls it again after errors that may pass.

        Args:
            call: Makes the request.
            name: The file that the request is about, for messages; empty for the folder.
            attempts: After how many failures the request is given up. If it is 1, or the folder is
                on a local disk, `call` is called once, and its error is passed on unchanged.

        Raises:
            StorageError: All attempts failed, or the error is final
                (`pipeline.storage.faults.call_patiently`).
        """
        if attempts == 1 or self.is_local:
            return call()
        return faults.call_patiently(self.locate(name), call, attempts, self.filesystem)


def _refuse_pipe(path: str) -> None:
    """Raises ValueError for a named pipe.

    A pipe has no size, cannot be read in parts, and would wait for a writer.
    """
    if stat.S_ISFIFO(os.stat(path).st_mode):
        cure = "write what comes through it to a file, and give that"
        raise ValueError(f"{path}: is a pipe (FIFO), expected a file; {cure}")


def _is_file(filesystem: Any, path: str) -> bool:
    """Returns whether a store has a file.

    Unlike fsspec's `isfile`, it raises an error if the request fails, instead of returning False.
    """
    try:
        return bool(filesystem.info(path)["type"] == "file")
    except FileNotFoundError:
        return False


def parse_storage_options(text: str | None) -> Mapping[str, Any] | None:
    """Parses the setting `storage_options`; its values are hidden in all messages from then on.

    Args:
        text: A JSON object, or @FILE for a file that holds one; None for no options.

    Returns:
        The keyword arguments for fsspec filesystems, or None if no options are given.

    Raises:
        ValueError: The text or the file is not a JSON object. The message does not quote it, as it
            may hold secrets.
    """
    if text is None:
        return None
    try:
        content = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        options = json.loads(content)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        what = 'a JSON object such as {"anon": true}'
        raise ValueError(f"storage_options is not {what}, nor @FILE holding one")  # noqa: TRY004
    learn(options)
    return options
