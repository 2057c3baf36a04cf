"""Caches ranges of shards on a local disk that the ranks of a machine share.

A reader checks the crc32 of every cached block, and fetches damaged blocks again. Locks are those
of `flock`, which the kernel releases when a process dies. A file is written under another name and
then renamed, so that nobody reads an unfinished one. A process that is killed leaves at most an
unfinished file and an empty lock file, which the next process takes over.
"""

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from pipeline.shards.block import checksum
from pipeline.shards.dataset import Dataset
from pipeline.shards.records import BlockTable, Shard
from trainer.stream.reading.ranged_read import (
    Attempts,
    BlockRange,
    DamageError,
    ShardReadError,
    call_within,
    fetch_blocks,
    retry,
    split_blocks,
)
from trainer.stream.reading.rate_limit import make_rate_file

MIN_CACHE_BYTES = 64 * 2**20

UNIT_BYTES = 4 * 2**20
"""Blocks of a shard that begin in the same range of this many bytes are cached together."""

_KEPT_PERCENT = 90
"""Share of the cache's limit that is still filled after old files were removed."""

_POLL_SECONDS = 0.02
"""Seconds between two looks at a lock that another process holds."""

_USAGE_SECONDS = 60.0
"""Seconds to wait for the lock of the file that says how full the cache is."""

_UNFINISHED = ".partial"
_MAX_DIGITS = 20  # a longer text in the file `usage` is no number of bytes

Checked = TypeVar("Checked")


class CacheError(ValueError):
    """The cache folder cannot be used. The message names the folder and says what to do."""


class ShardCache:
    """A folder that caches bytes by key, for any number of threads and processes of a machine.

    It also holds the file of the machine's rate limit.

    Attributes:
        rate_path: The file by which the processes of the machine share the rate limit.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        """Makes the folder.

        Args:
            folder: Path of the folder, on a disk of this machine.
            max_bytes: The most bytes that cached files may take.

        Raises:
            CacheError: The folder cannot be written or locked.
            ValueError: `max_bytes` is below MIN_CACHE_BYTES.
        """
        if max_bytes < MIN_CACHE_BYTES:
            raise ValueError(
                f"cache_bytes is {max_bytes}; it must be at least {MIN_CACHE_BYTES} (64 MiB)"
            )
        self._folder = Path(folder)
        self._max_bytes = max_bytes
        self.rate_path = self._folder / "rate"
        with self._named_errors():
            (self._folder / "locks").mkdir(parents=True, exist_ok=True)
            (self._folder / "stretches").mkdir(exist_ok=True)
            make_rate_file(self.rate_path)
            with self._locked("usage", threading.Event(), time.monotonic() + _USAGE_SECONDS):
                pass

    def read(
        self,
        key: str,
        check: Callable[[bytes], Checked],
        fetch: Callable[[], tuple[bytes, Checked]],
        attempts: Attempts,
    ) -> Checked:
        """Returns what is stored under a key, and fetches it first if it is not there.

        If several readers ask for one key at the same time, only one of them calls `fetch`.

        Args:
            key: Names the content. Other content must have another key.
            check: A function that takes the stored bytes, and returns them in the form in which
                this method returns them. It raises a ValueError if the bytes are damaged; they are
                then fetched again.
            fetch: A function that fetches the bytes. It returns the bytes to store, and these bytes
                in the form that `check` returns.
            attempts: Says how long to wait for another process that fetches the same key.

        Returns:
            The result of `check`, or the second part of the result of `fetch`.

        Raises:
            ShardReadError: The folder cannot be used, or the time of the attempts is spent.
        """
        path = self._place(key)
        stop = attempts.stop
        try:
            cached = self._find(path, check)
            if cached is not None:
                return cached
            with self._locked(path.name, stop, attempts.deadline):
                cached = self._find(path, check)
                if cached is not None:
                    return cached
                data, checked = fetch()
                with self._named_errors():
                    self._keep(path, data, stop)
                return checked
        except CacheError as error:
            raise ShardReadError(f"{attempts.what}: {error}") from error

    def forget(self, key: str) -> None:
        """Removes the file of a key, because its content turned out to be wrong."""
        with self._named_errors():
            self._place(key).unlink(missing_ok=True)

    def _place(self, key: str) -> Path:
        """Returns the path of the file that holds the content of a key."""
        return self._folder / "stretches" / hashlib.sha256(key.encode()).hexdigest()

    def _find(self, path: Path, check: Callable[[bytes], Checked]) -> Checked | None:
        """Returns what `check` returns for the content of a file.

        The file counts as the most recently used one from then on. A damaged file is removed.

        Args:
            path: The file.
            check: Takes the content; raises a ValueError if it is damaged.

        Returns:
            The result of `check`; None if there is no file, or a damaged one.
        """
        with self._named_errors():
            try:
                data = path.read_bytes()
                os.utime(path)
                return check(data)
            except FileNotFoundError:
                return None
            except ValueError:
                path.unlink(missing_ok=True)
                return None

    def _keep(self, path: Path, data: bytes, stop: threading.Event) -> None:
        """Writes a cached file, after removing the least recently used ones if there is no room.

        The number of bytes of all cached files is in the file `usage`. If a process is killed in
        this function, that number may be too high. It is right again after the next removal of
        files, which adds up the sizes of those that remain.

        Args:
            path: The file.
            data: Its content.
            stop: Ends the wait for the lock of `usage`.
        """
        usage = self._folder / "usage"
        unfinished = path.with_suffix(_UNFINISHED)
        with self._locked("usage", stop, time.monotonic() + _USAGE_SECONDS):
            text = usage.read_bytes() if usage.exists() else b""
            used = self._max_bytes
            if text.isdigit() and len(text) < _MAX_DIGITS:
                used = int(text)
            if used + len(data) > self._max_bytes:
                used = self._remove_oldest(self._max_bytes * _KEPT_PERCENT // 100 - len(data))
            unfinished.write_bytes(data)
            usage.write_text(str(used + len(data)))
            unfinished.replace(path)

    def _remove_oldest(self, most_bytes: int) -> int:
        """Removes the least recently used files until the others take at most `most_bytes` bytes.

        Returns the number of bytes that the remaining files take.
        """
        files = []
        for entry in os.scandir(self._folder / "stretches"):
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                files.append((status.st_mtime_ns, status.st_size, entry.path))
        used = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if used <= most_bytes:
                break
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            used -= size
        return used

    @contextlib.contextmanager
    def _locked(self, name: str, stop: threading.Event, deadline: float) -> Iterator[None]:
        """Holds a lock that keeps out all other threads and processes.

        Args:
            name: Name of the lock.
            stop: Ends the wait for the lock.
            deadline: When to end the wait for the lock, by `time.monotonic`.

        Raises:
            CacheError: The lock was not free in time, or `stop` was set.
        """
        path = self._folder / "locks" / name
        while (file := self._try_lock(path)) is None:
            if stop.wait(_POLL_SECONDS) or time.monotonic() > deadline:
                what = f"waited in vain for another thread or process to let go of {path}"
                raise CacheError(f"cache_dir {self._folder}: {what}")
        try:
            yield
        finally:
            with self._named_errors(), file:
                path.unlink(missing_ok=True)
                # Closing the file would not do: a process that was forked meanwhile has the same
                # open file, and with it the lock.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _try_lock(self, path: Path) -> BinaryIO | None:
        """Returns the opened and locked file of a lock, or None if another holder has it."""
        with self._named_errors(), contextlib.ExitStack() as stack:
            file = stack.enter_context(path.open("wb"))
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last holder may have removed the file between the two lines above. Then a lock
                # on the open file keeps nobody out.
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    stack.pop_all()
                    return file
        return None

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turns an OSError into a CacheError that names the folder."""
        try:
            yield
        except OSError as error:
            raise CacheError(
                f"cache_dir {self._folder}: {error.strerror or error}; free some room there, lower"
                " cache_bytes, give another folder, on a disk of this machine, or leave cache_dir"
                " out"
            ) from error


open_cache = lru_cache(maxsize=8)(ShardCache)
"""Opens a cache folder; readers of one process that name the same folder share the object."""


def read_blocks_cached(
    cache: ShardCache, blocks: BlockRange, attempts: Attempts
) -> list[memoryview]:
    """Returns the checked bytes of each block of a range, from the cache if they are there.

    Raises:
        FileNotFoundError: The shard is missing.
        ShardReadError: The bytes could not be read, or the cache cannot be used.
    """
    bodies: list[memoryview] = []
    for unit in _cache_units(blocks):
        unit_bodies = cache.read(
            f"{unit.shard.sha256} {unit.start_byte}-{unit.stop_byte}",
            partial(split_blocks, blocks=unit),
            partial(fetch_blocks, unit, attempts),
            attempts,
        )
        bodies += unit_bodies[max(blocks.first - unit.first, 0) : blocks.stop - unit.first]
    return bodies


def read_table_cached(
    cache: ShardCache, dataset: Dataset, shard: Shard, attempts: Attempts
) -> BlockTable:
    """Reads the block table of a shard through the cache, so that a machine reads its bytes once.

    Raises:
        FileNotFoundError: The dataset's file of block tables is missing.
        ShardReadError: The table could not be read, or is not the one that the shard names.
    """
    used_keys: list[str] = []

    def keep(key: str, read: Callable[[], bytes]) -> bytes:
        def fetch() -> tuple[bytes, bytes]:
            data = retry(lambda seconds: call_within(seconds, read), attempts)
            return _with_crc32(data), data

        used_keys.append(key)
        return cache.read(key, _without_crc32, fetch, attempts)

    while True:
        try:
            return dataset.blocks(shard, attempts=1, keep=keep)
        except (FileNotFoundError, ShardReadError):
            raise
        except ValueError as error:
            for key in used_keys:  # the bytes were wrong before they were cached
                cache.forget(key)
            attempts.failed(DamageError(str(error)))
            attempts.wait()


def _with_crc32(data: bytes) -> bytes:
    """Returns bytes with their crc32 in front, for files in which no other crc32 is stored."""
    return checksum(data).to_bytes(4, "little") + data


def _without_crc32(stored: bytes) -> bytes:
    """Returns the bytes that `_with_crc32` was given; raises a ValueError if the crc32 is wrong."""
    data = stored[4:]
    if _with_crc32(data) != stored:
        raise ValueError("the crc32 is another")
    return data


def _cache_units(blocks: BlockRange) -> Iterator[BlockRange]:
    """Yields the units of the cache that hold some blocks.

    A unit consists of all blocks of a shard that begin in the same UNIT_BYTES bytes of it. It is
    cached as a whole, so that its content does not depend on which of its blocks are asked for.

    Args:
        blocks: The blocks. The first and the last unit may have further ones.
    """
    unit_of_block = blocks.table.offset // UNIT_BYTES
    for unit in np.unique(unit_of_block[blocks.first : blocks.stop]):
        first, stop = np.searchsorted(unit_of_block, [unit, unit + 1])
        yield blocks._replace(first=int(first), stop=int(stop))
