"""The settings of how a process reads shards."""

from dataclasses import dataclass

STORE_THREADS = 8
"""Requests that are on their way to a store at the same time."""

LOCAL_THREADS = 2
"""Local files that are read at the same time. More threads would only wait for each other."""


@dataclass(frozen=True)
class Reading:
    """How shards are read. These settings do not change which instances are read.

    Attributes:
        buffer_bytes: Bytes of memory of one rank for blocks that are read ahead. Half of them are
            filled at a time. While the rank validates, it needs as many again.
        cache_dir: Folder on a disk of this machine that keeps what was read, for all ranks on it.
        cache_bytes: The most bytes that the cache folder holds.
        max_read_bytes: The most bytes of consecutive blocks that one request reads.
        timeout_seconds: Seconds that one request may take.
        budget_seconds: Seconds that one range of bytes may take over all its attempts.
        num_threads: Requests that are on their way at the same time; None means STORE_THREADS for a
            store and LOCAL_THREADS for local files.
        rank: Number of this process among those that read from the same store.
        num_ranks: Number of processes that read from the same store.
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
        """Returns how many requests may be on their way at the same time.

        Args:
            is_local: Whether all shards are on disks of this machine.
        """
        return self.num_threads or (LOCAL_THREADS if is_local else STORE_THREADS)
