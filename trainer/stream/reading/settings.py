"""How shards are read."""

from dataclasses import dataclass

STORE_THREADS, LOCAL_THREADS = 8, 2
"""Requests in flight to a store, and to local files, whose threads wait for each other instead."""


@dataclass(frozen=True)
class Reading:
    """How shards are read; what is read does not depend on it.

    Attributes:
        buffer_bytes: Bytes of memory of one rank for blocks that are read ahead, and as many again
            while it validates. Half of it is read at a time.
        cache_dir: Folder on a disk of this machine that keeps what was read, for all ranks on it.
        cache_bytes: The most bytes that the cache folder holds.
        max_read_bytes: The most bytes of consecutive blocks that one request reads.
        timeout_seconds: Seconds that one request may take.
        budget_seconds: Seconds that one range of bytes may take over all its attempts.
        num_threads: Requests in flight; None means STORE_THREADS, or LOCAL_THREADS for local files.
        rank: Number of this process among those that ask the same store.
        num_ranks: How many these are.
    """

    buffer_bytes: int = 512 * 2**20
    cache_dir: str | None = None
    cache_bytes: int = 64 * 2**30
    max_read_bytes: int = 8 * 2**20
    timeout_seconds: float = 60.0
    budget_seconds: float = 300.0
    num_threads: int | None = None
    rank: int = 0
    num_ranks: int = 1

    def num_requests(self, is_local: bool) -> int:
        """Requests in flight to a store, or to this machine's own disks."""
        return self.num_threads or (LOCAL_THREADS if is_local else STORE_THREADS)
