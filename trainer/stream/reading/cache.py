"""Stretches of shards kept on a local disk, shared by the ranks of a node.

Whoever reads checks every block's crc32, and fetches again what is damaged. Locks are those of
`flock`, which the kernel lets go of when a process dies. Stretches appear by rename. A process that
is killed leaves at most unfinished files and empty ones of locks, which the next one takes over.
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
STRETCH_BYTES = 4 * 2**20
_KEPT_PERCENT = 90
_POLL_SECONDS = 0.02
_USAGE_SECONDS = 60.0
_UNFINISHED = ".partial"
_MAX_DIGITS = 20  # of a number of bytes; whatever else is in the file is no count

Checked = TypeVar("Checked")


class CacheError(ValueError):
    """The cache cannot be used. The message names the folder and what to do."""


class ShardCache:
    """A folder of stretches by key, and a rate limit, for any number of threads and processes."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        """Makes the folder; a ValueError where it cannot be written or max_bytes is too small."""
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
        """What `check` makes of the bytes of a key, from the folder or else from `fetch`.

        Of all that want the same at once only one calls `fetch`, which also checks. A
        ShardReadError says that the folder cannot be used, or the time of the attempts ended.
        """
        path, stop = self._place(key), attempts.stop
        try:
            if (found := self._find(path, check)) is not None:
                return found
            with self._locked(path.name, stop, attempts.deadline):
                if (found := self._find(path, check)) is not None:
                    return found
                data, checked = fetch()
                with self._named_errors():
                    self._keep(path, data, stop)
                return checked
        except CacheError as error:
            raise ShardReadError(f"{attempts.what}: {error}") from error

    def forget(self, key: str) -> None:
        """Removes what was kept under a key, which was not what it should be."""
        with self._named_errors():
            self._place(key).unlink(missing_ok=True)

    def _place(self, key: str) -> Path:
        return self._folder / "stretches" / hashlib.sha256(key.encode()).hexdigest()

    def _find(self, path: Path, check: Callable[[bytes], Checked]) -> Checked | None:
        """The stretch as checked; None where it is not there, or is damaged and now removed."""
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
        """Writes a stretch, after removing the least recently used where it does not fit.

        A process killed in here may leave a count too high, which the next clearing puts right.
        """
        usage, unfinished = self._folder / "usage", path.with_suffix(_UNFINISHED)
        with self._locked("usage", stop, time.monotonic() + _USAGE_SECONDS):
            text, used = usage.read_bytes() if usage.exists() else b"", self._max_bytes
            if text.isdigit() and len(text) < _MAX_DIGITS:
                used = int(text)
            if used + len(data) > self._max_bytes:
                used = self._remove_oldest(self._max_bytes * _KEPT_PERCENT // 100 - len(data))
            unfinished.write_bytes(data)
            usage.write_text(str(used + len(data)))
            unfinished.replace(path)

    def _remove_oldest(self, most_bytes: int) -> int:
        """Removes stretches, those used longest ago first; returns the bytes left."""
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
        """Keeps out every other thread and process; a CacheError after the deadline or the stop."""
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
                # Closing would not do: a process forked meanwhile has the same open file, and with
                # it the lock.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _try_lock(self, path: Path) -> BinaryIO | None:
        """The file of a lock, locked; None where somebody else has it."""
        with self._named_errors(), contextlib.ExitStack() as stack:
            file = stack.enter_context(path.open("wb"))
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had it before may have removed the file between the lines above: then this
                # locks nothing.
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    stack.pop_all()
                    return file
        return None

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CacheError(
                f"cache_dir {self._folder}: {error.strerror or error}; free some room there, lower"
                " cache_bytes, give another folder, on a disk of this machine, or leave cache_dir"
                " out"
            ) from error


open_cache = lru_cache(maxsize=8)(ShardCache)


def read_blocks_cached(
    cache: ShardCache, blocks: BlockRange, attempts: Attempts
) -> list[memoryview]:
    """The checked bytes of a range's blocks, as `fetch_blocks`, through the cache."""
    bodies: list[memoryview] = []
    for stretch in _stretches(blocks):
        found = cache.read(
            f"{stretch.shard.sha256} {stretch.start_byte}-{stretch.stop_byte}",
            partial(split_blocks, blocks=stretch),
            partial(fetch_blocks, stretch, attempts),
            attempts,
        )
        bodies += found[max(blocks.first - stretch.first, 0) : blocks.stop - stretch.first]
    return bodies


def read_table_cached(
    cache: ShardCache, dataset: Dataset, shard: Shard, attempts: Attempts
) -> BlockTable:
    """A shard's block table, as `read_table`; its bytes are read once for all ranks of a node."""
    used: list[str] = []

    def keep(key: str, read: Callable[[], bytes]) -> bytes:
        def fetch() -> tuple[bytes, bytes]:
            data = retry(lambda seconds: call_within(seconds, read), attempts)
            return _sealed(data), data

        used.append(key)
        return cache.read(key, _unsealed, fetch, attempts)

    while True:
        try:
            return dataset.blocks(shard, attempts=1, keep=keep)
        except (FileNotFoundError, ShardReadError):
            raise
        except ValueError as error:
            for key in used:  # it was damaged before it came here
                cache.forget(key)
            attempts.failed(DamageError(str(error)))
            attempts.wait()


def _sealed(data: bytes) -> bytes:
    """Bytes with their crc32, for what has none of its own."""
    return checksum(data).to_bytes(4, "little") + data


def _unsealed(stored: bytes) -> bytes:
    data = stored[4:]
    if _sealed(data) != stored:
        raise ValueError("the crc32 is another")
    return data


def _stretches(blocks: BlockRange) -> Iterator[BlockRange]:
    """What is cached together: the blocks that begin in the same STRETCH_BYTES of a shard.

    It does not depend on who wants which of them.
    """
    number = blocks.table.offset // STRETCH_BYTES
    for each in np.unique(number[blocks.first : blocks.stop]):
        first, stop = np.searchsorted(number, [each, each + 1])
        yield blocks._replace(first=int(first), stop=int(stop))
